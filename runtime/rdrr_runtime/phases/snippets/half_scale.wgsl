// Convert the bits of an f16 to f32. This is exact for subnormal values too, which block scales often are
// and which unpack2x16float may flush to zero.
fn half_scale(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let widened = exponent + select(112u, 224u, exponent == 31u);  // infinity and NaN stay what they are
    let normal = bitcast<f32>((widened << 23u) | (mantissa << 13u));
    let value = select(normal, f32(mantissa) * 5.9604644775390625e-8, exponent == 0u);
    return select(value, -value, (bits & 0x8000u) != 0u);
}
