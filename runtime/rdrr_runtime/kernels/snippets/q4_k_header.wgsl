// d, dmin and the six-bit scales of a Q4_K block; once a shader, whatever the number of matrices.
{% if S == 0 or "q4_k" not in SEGMENTS[:S] %}
// Exact also for subnormal values, which unpack2x16float may flush and block scales often are.
fn half_scale(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let normal = bitcast<f32>(((exponent + 112u) << 23u) | (mantissa << 13u));
    let value = select(normal, f32(mantissa) * 5.9604644775390625e-8, exponent == 0u);
    return select(value, -value, (bits & 0x8000u) != 0u);
}

// Scales and minimums (sc_j, sc_j+1, m_j, m_j+1) of sub-blocks j and j + 1, j even; s is the 12
// bytes of scales.
fn scale_pairs(s: vec3<u32>, j: u32) -> vec4<f32> {
    let shift = 8u * (j % 4u);
    let a = s.x >> shift;
    let b = s.y >> shift;
    let c = s.z >> shift;
    var scale = a & 0x3f3fu;
    var low = b & 0x3f3fu;
    if (j >= 4u) {
        scale = (c & 0x0f0fu) | ((a & 0xc0c0u) >> 2u);
        low = ((c >> 4u) & 0x0f0fu) | ((b & 0xc0c0u) >> 2u);
    }
    return vec4<f32>(
        f32(scale & 0xffu), f32((scale >> 8u) & 0xffu), f32(low & 0xffu), f32((low >> 8u) & 0xffu)
    );
}
{% endif %}
