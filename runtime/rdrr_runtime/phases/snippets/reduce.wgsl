{# The reduction `reduce_{{ NAME }}` of {{ TYPE }} over a workgroup: of two values `a` and `b` it keeps {{ BOTH }}, as {{ SUBGROUP }} does over a subgroup. #}
var<workgroup> reduce_{{ NAME }}_shared: array<{{ TYPE }}, WG>;

{% if SUBGROUPS %}
fn reduce_{{ NAME }}(v: {{ TYPE }}, thread: Thread) -> {{ TYPE }} {
    let own = {{ SUBGROUP }}(v);
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    if (thread.lane == 0u) {
        reduce_{{ NAME }}_shared[thread.subgroup] = own;
    }
    workgroupBarrier();
    var a = reduce_{{ NAME }}_shared[0];
    for (var i = 1u; i < thread.subgroups; i++) {
        let b = reduce_{{ NAME }}_shared[i];
        a = {{ BOTH }};
    }
    return a;
}
{% else %}
fn reduce_{{ NAME }}(v: {{ TYPE }}, thread: Thread) -> {{ TYPE }} {
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    reduce_{{ NAME }}_shared[thread.index] = v;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread.index < half) {
            let a = reduce_{{ NAME }}_shared[thread.index];
            let b = reduce_{{ NAME }}_shared[thread.index + half];
            reduce_{{ NAME }}_shared[thread.index] = {{ BOTH }};
        }
    }
    workgroupBarrier();
    return reduce_{{ NAME }}_shared[0];
}
{% endif %}
