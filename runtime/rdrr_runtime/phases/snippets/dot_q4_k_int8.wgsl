// Q4_K: a unit is 64 weights in 2 words of nibbles: low ones are sub-block 2c, high ones 2c + 1.
alias Word{{ S }} = vec4<u32>;
{% include "snippets/q4_k_header.wgsl" %}
{% include "snippets/dot16.wgsl" %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base / 4u + (unit / 4u) * 9u;
    let c = unit % 4u;
    let head = weight{{ S }}[block];
    let first = weight{{ S }}[block + 1u + 2u * c];
    let second = weight{{ S }}[block + 2u + 2u * c];
    let nibble = vec4<u32>(0x0f0f0f0fu);
    let four = vec4<u32>(4u);
    let part = 4u * unit;  // of 16 elements
    let products = vec4<f32>(vec4<i32>(
        dot16(first & nibble, staged[part]),
        dot16(second & nibble, staged[part + 1u]),
        dot16((first >> four) & nibble, staged[part + 2u]),
        dot16((second >> four) & nibble, staged[part + 3u]),
    ));
    let scale = vec4<f32>(scales[part], scales[part + 1u], scales[part + 2u], scales[part + 3u]);
    let all = vec4<f32>(vec4<i32>(sums[part], sums[part + 1u], sums[part + 2u], sums[part + 3u]));
    let s = scale_pairs(head.yzw, 2u * c);
    let d = half_scales(head.x);
    return d.x * dot(s.xxyy, scale * products) - d.y * dot(s.zzww, scale * all);
}
