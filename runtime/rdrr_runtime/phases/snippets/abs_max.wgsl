// The bits of max|v|. As integers they have the order of the numbers, and NaN is the largest, so the scale
// of a group that holds NaN is NaN.
fn bits_of_abs_max(v: vec4<f32>) -> u32 {
    let a = bitcast<vec4<u32>>(abs(v));
    return max(max(a.x, a.y), max(a.z, a.w));
}
