// Round four weights to 16-bit integers, in units of 1 / inverse, and split them into two int8 planes:
// integer = 256 high + low.
//
// Adding 1.5 * 2^23 + 128 puts the integer + 128 into the lower 16 bits of the f32. Their upper byte is
// `high` and their lower byte is `low + 128`.
fn split_int8(weights: vec4<f32>, inverse: f32) -> vec2<u32> {
    let v = bitcast<vec4<u32>>(fma(weights, vec4<f32>(inverse), vec4<f32>(12582912.0 + 128.0)));
    let even = (v.x & 0xffffu) | (v.z << 16u);
    let odd = (v.y & 0xffffu) | (v.w << 16u);
    let mask = 0x00ff00ffu;
    return vec2<u32>(
        ((even >> 8u) & mask) | (odd & ~mask),
        ((even & mask) | ((odd << 8u) & ~mask)) ^ 0x80808080u,
    );
}
