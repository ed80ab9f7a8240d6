// Maximum over the workgroup of WG threads (a power of two); valid in every thread.
var<workgroup> reduce_max_shared: array<f32, WG>;

{% if SUBGROUPS %}
fn reduce_max(v: f32, thread: Thread) -> f32 {
    let most = subgroupMax(v);
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    if (thread.lane == 0u) {
        reduce_max_shared[thread.subgroup] = most;
    }
    workgroupBarrier();
    var total = reduce_max_shared[0];
    for (var i = 1u; i < thread.subgroups; i++) {
        total = max(total, reduce_max_shared[i]);
    }
    return total;
}
{% else %}
fn reduce_max(v: f32, thread: Thread) -> f32 {
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    reduce_max_shared[thread.index] = v;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread.index < half) {
            reduce_max_shared[thread.index] =
                max(reduce_max_shared[thread.index], reduce_max_shared[thread.index + half]);
        }
    }
    workgroupBarrier();
    return reduce_max_shared[0];
}
{% endif %}
