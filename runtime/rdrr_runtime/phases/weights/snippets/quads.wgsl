{# Four unquantized values from two words; included once in a shader. #}
{% if FORMATS | selectattr("values", "equalto", "bf16") | list %}
// BF16: a value is the upper half of an f32.
fn quad_bf16(words: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(
        words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
{% endif %}
{% if FORMATS | selectattr("values", "equalto", "f16") | list %}
// F16; does not need the feature shader-f16.
fn quad_f16(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
{% endif %}
