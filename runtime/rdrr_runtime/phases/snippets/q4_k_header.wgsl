// The f16 scale and minimum of a block, and the six-bit scales of Q4_K and Q5_K; once a shader,
// whatever the number of matrices.
{% if not (SEGMENTS[:S] | select("in", ["q4_k", "q5_k", "q5_1"]) | list) %}
// The two f16 values of a word. Exact also for subnormal ones, which unpack2x16float may flush and
// block scales often are: mantissa with its leading one, times a power of two.
fn half_scales(word: u32) -> vec2<f32> {
    let bits = vec2<u32>(word & 0xffffu, word >> 16u);
    let exponent = (bits >> vec2<u32>(10u)) & vec2<u32>(31u);
    let leading = min(exponent, vec2<u32>(1u)) << vec2<u32>(10u);
    let mantissa = vec2<f32>((bits & vec2<u32>(1023u)) | leading);
    let power = bitcast<vec2<f32>>((max(exponent, vec2<u32>(1u)) + 102u) << vec2<u32>(23u));
    return mantissa * select(power, -power, (bits & vec2<u32>(0x8000u)) != vec2<u32>(0u));
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
