{# Shaders may set MAX_TYPE, for example to vec4<f32> for a maximum of each component. #}
{% set T = MAX_TYPE | default("f32") %}
// Maximum over the workgroup of WG threads (a power of two); valid in every thread.
var<workgroup> reduce_max_shared: array<{{ T }}, WG>;

{% if SUBGROUPS %}
fn reduce_max(v: {{ T }}, thread: Thread) -> {{ T }} {
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
fn reduce_max(v: {{ T }}, thread: Thread) -> {{ T }} {
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
