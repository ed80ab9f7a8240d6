// Q5_0: a unit is a block of 32 in 6 words: d as f32, 32 fifth bits and 16 bytes of nibbles.
alias Word{{ S }} = u32;
{% if not (SEGMENTS[:S] | select("in", ["q5_0", "q5_1"]) | list) %}
{% include "snippets/fifth_bits.wgsl" %}
{% endif %}
{% include "snippets/dot16.wgsl" %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 6u;
    let d = bitcast<f32>(weight{{ S }}[block]);
    let fifth = weight{{ S }}[block + 1u];
{% for i in range(4) %}
    let codes{{ i }} = weight{{ S }}[block + {{ 2 + i }}u];
    let low{{ i }} = (codes{{ i }} & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 4 * i }}u);
    let high{{ i }} = ((codes{{ i }} >> 4u) & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 16 + 4 * i }}u);
{% endfor %}
    let scale = vec2<f32>(scales[2u * unit], scales[2u * unit + 1u]);
    let products = vec2<f32>(vec2<i32>(
        dot16(vec4<u32>(low0, low1, low2, low3), staged[2u * unit]),
        dot16(vec4<u32>(high0, high1, high2, high3), staged[2u * unit + 1u]),
    ));
    let all = vec2<f32>(vec2<i32>(sums[2u * unit], sums[2u * unit + 1u]));
    return d * dot(scale, products - 16.0 * all);
}
