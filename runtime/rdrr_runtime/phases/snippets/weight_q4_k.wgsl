// Q4_K: 256 weights in 9 words of 16 bytes: (d dmin, 12 B of scales), 128 B of nibbles.
// w = d sc_j q - dmin m_j for sub-block j of 32. A unit is one word of nibbles: 16 low ones of
// sub-block 2c and 16 high ones of sub-block 2c + 1, so it spans two runs of 16 weights.
alias Word = vec4<u32>;

{% include "snippets/k_scales.wgsl" %}

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

fn unit_element(unit: u32, i: u32) -> u32 {
    let within = (unit % 8u) / 2u * 64u + (unit % 2u) * 16u;
    return (unit / 8u) * 256u + within + (i / 4u) * 32u + (i % 4u) * 4u;
}
