// Q4_K: 256 weights in 9 words of 16 bytes. The first word has d and dmin (f16) and 12 bytes of
// scales, the other 8 words have 128 bytes of nibbles. Sub-block j of 32 weights decodes to
// w = d sc_j q - dmin m_j. A unit is one word of nibbles: its low nibbles are 16 weights of sub-block
// 2c, its high nibbles 16 weights of sub-block 2c + 1.
alias Word = vec4<u32>;

// Decode an f16. Block scales are often subnormal, and unpack2x16float may flush those to zero.
fn half_scale(bits: u32) -> f32 {
    let exponent = (bits >> 10u) & 31u;
    let mantissa = bits & 1023u;
    let normal = bitcast<f32>(((exponent + 112u) << 23u) | (mantissa << 13u));
    let value = select(normal, f32(mantissa) * 5.9604644775390625e-8, exponent == 0u);
    return select(value, -value, (bits & 0x8000u) != 0u);
}

// Return (scale, minimum) of sub-block j; s is the 12 bytes of scales.
fn scale_and_min(s: vec3<u32>, j: u32) -> vec2<f32> {
    let shift = 8u * (j % 4u);
    let a = s.x >> shift;
    let b = s.y >> shift;
    let c = s.z >> shift;
    let low = vec2<u32>(a & 63u, b & 63u);
    let high = vec2<u32>((c & 15u) | ((a & 192u) >> 2u), ((c >> 4u) & 15u) | ((b & 192u) >> 2u));
    return vec2<f32>(select(high, low, j < 4u));
}

// Decode the 32 weights of a unit. base: first 32-bit word of the stored row.
fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base / 4u + (unit / 8u) * 9u;
    let head = weight[block];
    let nibbles = weight[block + 1u + unit % 8u];
    let sub = (unit % 8u) / 2u * 2u;
    let factor = vec2<f32>(half_scale(head.x & 0xffffu), -half_scale(head.x >> 16u));
    let first = factor * scale_and_min(head.yzw, sub);
    let second = factor * scale_and_min(head.yzw, sub + 1u);
    let low = nibbles & vec4<u32>(0x0f0f0f0fu);
    let high = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
{% for i in range(4) %}
    w[{{ i }}] = first.x * vec4<f32>(unpack4xU8(low[{{ i }}])) + first.y;
    w[{{ 4 + i }}] = second.x * vec4<f32>(unpack4xU8(high[{{ i }}])) + second.y;
{% endfor %}
    return w;
}

// Return the index in the row of the first of the four weights in vector i of a unit.
fn unit_element(unit: u32, i: u32) -> u32 {
    let within = (unit % 8u) / 2u * 64u + (unit % 2u) * 16u;
    return (unit / 8u) * 256u + within + (i / 4u) * 32u + (i % 4u) * 4u;
}
