{% set SUM = SUM | default("vec4<f32>") %}
// Sum of a number or a vector over the workgroup of WG threads (a power of two); valid in every thread.
var<workgroup> reduce_shared: array<{{ SUM }}, WG>;

{% if SUBGROUPS %}
fn reduce_sum(v: {{ SUM }}, thread: Thread) -> {{ SUM }} {
    let sum = subgroupAdd(v);
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    if (thread.lane == 0u) {
        reduce_shared[thread.subgroup] = sum;
    }
    workgroupBarrier();
    var total = reduce_shared[0];
    for (var i = 1u; i < thread.subgroups; i++) {
        total += reduce_shared[i];
    }
    return total;
}
{% else %}
fn reduce_sum(v: {{ SUM }}, thread: Thread) -> {{ SUM }} {
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    reduce_shared[thread.index] = v;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread.index < half) {
            reduce_shared[thread.index] += reduce_shared[thread.index + half];
        }
    }
    workgroupBarrier();
    return reduce_shared[0];
}
{% endif %}
