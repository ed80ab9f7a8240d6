{# Sums over the workgroup of the threads' own {{ SUM }}, in two steps so that one barrier serves several of them.

   Subgroups have 4 threads at least, so a quarter of the entries is enough. That helps in one dispatch, where the
   arrays of all phases share the memory. Launched by itself, a product with fewer entries was 3 % slower on an H100. #}
var<workgroup> shared_{{ NAME }}: array<{{ SUM }}, {{ "WG / 4u" if SUBGROUPS and QUADS else "WG" }}>;

// Publish a thread's {{ NAME }}, which `workgroup_{{ NAME }}` adds up after a barrier.
fn publish_{{ NAME }}(own: {{ SUM }}, thread: Thread) {
{% if SUBGROUPS %}
    let total = subgroupAdd(own);
    if (thread.lane == 0u) {
        shared_{{ NAME }}[thread.subgroup] = total;
    }
{% else %}
    shared_{{ NAME }}[thread.index] = own;
    workgroupBarrier();
    if (thread.index < 16u) {
        var total = {{ SUM }}();
        for (var i = thread.index; i < WG; i += 16u) {
            total += shared_{{ NAME }}[i];
        }
        shared_{{ NAME }}[thread.index] = total;
    }
{% endif %}
}

fn workgroup_{{ NAME }}(thread: Thread) -> {{ SUM }} {
    var total = {{ SUM }}();
    for (var i = 0u; i < {{ "thread.subgroups" if SUBGROUPS else "16u" }}; i++) {
        total += shared_{{ NAME }}[i];
    }
    return total;
}
