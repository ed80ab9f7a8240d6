// in(x) in workgroup memory as int8: x = scale q for each 16 elements, scale = max|x| / 127.
// sums holds the sum of q over each 16, for formats with a minimum. Returns this thread's sum of
// squares. Four threads share a scale: by shuffles where subgroups are that wide.
var<workgroup> staged: array<vec4<u32>, K_STAGED / 16u>;
var<workgroup> scales: array<f32, K_STAGED / 16u>;
var<workgroup> sums: array<i32, K_STAGED / 16u>;

{% if INPUT == "quantized" %}
fn stage(thread: Thread, subgroup_size: u32) -> f32 {
    for (var i = thread.index; i < K_STAGED / 16u; i += WG) {
        let inside = 16u * i < K;
        staged[i] = select(vec4<u32>(0u), x[min(i, K / 16u - 1u)], inside);
        let scale = x_scales[min(i, K / 16u - 1u)];
        scales[i] = select(0.0, scale.x, inside);
        sums[i] = select(0i, bitcast<i32>(scale.y), inside);
    }
    return 0.0;
}
{% else %}
var<workgroup> shared_max: array<f32, WG>;
var<workgroup> shared_sum: array<i32, WG>;

// Quantize elements 4 i to 4 i + 3, whose group's largest magnitude is `most`.
fn quantize(i: u32, v: vec4<f32>, most: f32) -> i32 {
    let inverse = select(0.0, 127.0 / most, most > 0.0);
    let q = vec4<i32>(round(v * inverse));
    staged[i / 4u][i % 4u] = pack4xI8(q);
    if (i % 4u == 0u) {
        scales[i / 4u] = most / 127.0;
    }
    return q.x + q.y + q.z + q.w;
}

fn stage(thread: Thread, subgroup_size: u32) -> f32 {
    var squared = 0.0;
    let end = K_STAGED / 4u;  // a multiple of 64, so that neighbours never part
{% if SUBGROUPS %}
    if (subgroup_size >= 4u) {
        // All threads make every round, since Tint wants shuffles where none has left.
        let at = thread.subgroup * subgroup_size + thread.lane;
        for (var first = 0u; first < end; first += WG) {
            let i = first + at;
            let inside = i < end;
            var v = vec4<f32>(0.0);
            if (inside) {
                v = input(i, &squared);
            }
            var most = largest(v);
            most = max(most, subgroupShuffleXor(most, 1u));
            most = max(most, subgroupShuffleXor(most, 2u));
            var sum = 0i;
            if (inside) {
                sum = quantize(i, v, most);
            }
            sum += subgroupShuffleXor(sum, 1u);
            sum += subgroupShuffleXor(sum, 2u);
            if (inside && i % 4u == 0u) {
                sums[i / 4u] = sum;
            }
        }
        return squared;
    }
{% endif %}
    let t = thread.index;
    for (var first = 0u; first < end; first += WG) {
        let i = first + t;
        var v = vec4<f32>(0.0);
        if (i < end) {
            v = input(i, &squared);
        }
        shared_max[t] = largest(v);
        workgroupBarrier();
        let at = t & ~3u;
        let most = max(max(shared_max[at], shared_max[at + 1u]),
                       max(shared_max[at + 2u], shared_max[at + 3u]));
        if (i < end) {
            shared_sum[t] = quantize(i, v, most);
        }
        workgroupBarrier();
        if (i < end && i % 4u == 0u) {
            sums[i / 4u] =
                shared_sum[t] + shared_sum[t + 1u] + shared_sum[t + 2u] + shared_sum[t + 3u];
        }
        workgroupBarrier();
    }
    return squared;
}
{% endif %}
