// BF16: four weights from two words; each is the upper half of an f32.
fn quad(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(
        vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
