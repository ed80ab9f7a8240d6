// Q5_1: a unit is a block of 32 weights, 6 words: d and m (f16), 32 fifth bits, 16 bytes of nibbles,
// the low ones of weights 0..15, the high ones of 16..31. w = d q + m.
alias Word = u32;

{% include "snippets/half_scale.wgsl" %}
{% include "snippets/fifth_bits.wgsl" %}

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base + unit * 6u;
    let d = half_scale(weight[block] & 0xffffu);
    let m = half_scale(weight[block] >> 16u);
    let fifth = weight[block + 1u];
{% for i in range(4) %}
    let codes{{ i }} = weight[block + {{ 2 + i }}u];
    let low{{ i }} = (codes{{ i }} & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 4 * i }}u);
    let high{{ i }} = ((codes{{ i }} >> 4u) & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 16 + 4 * i }}u);
    w[{{ i }}] = d * vec4<f32>(unpack4xU8(low{{ i }})) + m;
    w[{{ 4 + i }}] = d * vec4<f32>(unpack4xU8(high{{ i }})) + m;
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
