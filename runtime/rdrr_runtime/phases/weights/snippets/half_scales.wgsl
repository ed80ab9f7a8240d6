// Convert the two f16 values of a word to f32, as the mantissa with its leading one times a power of two.
// This is exact for subnormal values too, which block scales often are and which unpack2x16float may
// flush to zero.
fn half_scales(word: u32) -> vec2<f32> {
    let bits = vec2<u32>(word & 0xffffu, word >> 16u);
    let exponent = (bits >> vec2<u32>(10u)) & vec2<u32>(31u);
    let leading = min(exponent, vec2<u32>(1u)) << vec2<u32>(10u);
    let mantissa = vec2<f32>((bits & vec2<u32>(1023u)) | leading);
    let power = bitcast<vec2<f32>>((max(exponent, vec2<u32>(1u)) + 102u) << vec2<u32>(23u));
    return mantissa * select(power, -power, (bits & vec2<u32>(0x8000u)) != vec2<u32>(0u));
}
