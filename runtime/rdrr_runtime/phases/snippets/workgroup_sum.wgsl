{# Sums over the workgroup of the threads' own {{ SUM }}, in two steps so that one barrier serves several of them. #}
var<workgroup> shared_{{ NAME }}: array<{{ SUM }}, {{ "WG / 4u" if SUBGROUPS else "WG" }}>;{{ "  // subgroups have 4 threads at least" if SUBGROUPS }}

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
