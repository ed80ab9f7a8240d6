// in(x) in workgroup memory as int8: x = scale q for each 32 elements, scale = max|x| / 127.
// part_sums holds the sum of q over each 16, for formats with a minimum.
var<workgroup> staged: array<vec4<u32>, K_STAGED / 16u>;
var<workgroup> scales: array<f32, K_STAGED / 32u>;
var<workgroup> part_sums: array<i32, K_STAGED / 16u>;

fn largest(v: vec4<f32>) -> f32 {
    let a = abs(v);
    return max(max(a.x, a.y), max(a.z, a.w));
}

fn stage(t: u32) {
    for (var group = t; group < K_STAGED / 32u; group += WG) {
        var v: array<vec4<f32>, 8>;
        var most = 0.0;
        for (var i = 0u; i < 8u; i++) {
            v[i] = input(8u * group + i);
            most = max(most, largest(v[i]));
        }
        let scale = most / 127.0;
        let inverse = select(0.0, 127.0 / most, most > 0.0);
        scales[group] = scale;
        for (var half = 0u; half < 2u; half++) {
            var words: vec4<u32>;
            var sum = 0i;
            for (var i = 0u; i < 4u; i++) {
                let q = vec4<i32>(round(v[4u * half + i] * inverse));
                words[i] = pack4xI8(q);
                sum += q.x + q.y + q.z + q.w;
            }
            staged[2u * group + half] = words;
            part_sums[2u * group + half] = sum;
        }
    }
}
