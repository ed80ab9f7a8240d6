// Q4_K: a unit is one of the 8 words of nibbles: 16 low ones of sub-block 2c, 16 high of 2c + 1.
alias Word{{ S }} = vec4<u32>;
{% include "snippets/q4_k_header.wgsl" %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base / 4u + (unit / 8u) * 9u;
    let head = weight{{ S }}[block];
    let nibbles = weight{{ S }}[block + 1u + unit % 8u];
    let low = nibbles & vec4<u32>(0x0f0f0f0fu);
    let high = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    let sub = (unit % 8u) / 2u * 2u;
{% include "snippets/k_quant_sums.wgsl" %}
}
