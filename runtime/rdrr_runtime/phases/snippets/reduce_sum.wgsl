// Sum of a vec4 over the workgroup of WG threads (a power of two); valid in every thread.
var<workgroup> reduce_shared: array<vec4<f32>, WG>;

{% if SUBGROUPS %}
fn reduce_sum(v: vec4<f32>, thread: Thread) -> vec4<f32> {
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
fn reduce_sum(v: vec4<f32>, thread: Thread) -> vec4<f32> {
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
