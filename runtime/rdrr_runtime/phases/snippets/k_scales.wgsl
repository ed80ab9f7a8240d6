{% include "snippets/half_scale.wgsl" %}

// (scale, minimum) of sub-block j; s is the 12 bytes of scales.
fn scale_and_min(s: vec3<u32>, j: u32) -> vec2<f32> {
    let shift = 8u * (j % 4u);
    let a = s.x >> shift;
    let b = s.y >> shift;
    let c = s.z >> shift;
    let low = vec2<u32>(a & 63u, b & 63u);
    let high = vec2<u32>((c & 15u) | ((a & 192u) >> 2u), ((c >> 4u) & 15u) | ((b & 192u) >> 2u));
    return vec2<f32>(select(high, low, j < 4u));
}
