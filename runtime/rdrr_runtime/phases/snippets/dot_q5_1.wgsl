// Q5_1: a unit is a block of 32 in 6 words: d and m as f16, 32 fifth bits and 16 bytes of nibbles.
alias Word{{ S }} = u32;
{% if not (SEGMENTS[:S] | select("in", ["q5_0", "q5_1"]) | list) %}
{% include "snippets/fifth_bits.wgsl" %}
{% endif %}
{% include "snippets/q4_k_header.wgsl" %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 6u;
    let d = half_scales(weight{{ S }}[block]);
    let fifth = weight{{ S }}[block + 1u];
    var sum = vec4<f32>(0.0);
    var all = vec4<f32>(0.0);
{% for i in range(4) %}
    let codes{{ i }} = weight{{ S }}[block + {{ 2 + i }}u];
    let low{{ i }} = (codes{{ i }} & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 4 * i }}u);
    let high{{ i }} = ((codes{{ i }} >> 4u) & 0x0f0f0f0fu) | fifth_bits(fifth >> {{ 16 + 4 * i }}u);
    let xa{{ i }} = staged[8u * unit + {{ i }}u];
    let xb{{ i }} = staged[8u * unit + {{ 4 + i }}u];
    sum += vec4<f32>(unpack4xU8(low{{ i }})) * xa{{ i }} + vec4<f32>(unpack4xU8(high{{ i }})) * xb{{ i }};
    all += xa{{ i }} + xb{{ i }};
{% endfor %}
    let one = vec4<f32>(1.0);
    return d.x * dot(sum, one) + d.y * dot(all, one);
}
