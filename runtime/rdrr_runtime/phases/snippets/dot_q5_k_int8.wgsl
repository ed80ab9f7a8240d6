// Q5_K: a unit is 64 weights in 2 words of nibbles: low ones are sub-block 2c, high ones 2c + 1;
// their fifth bits are bits 2c and 2c + 1 of the 2 words before.
alias Word{{ S }} = vec4<u32>;
{% include "snippets/q4_k_header.wgsl" %}
{% include "snippets/dot16.wgsl" %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base / 4u + (unit / 4u) * 11u;
    let c = unit % 4u;
    let head = weight{{ S }}[block];
    let first = weight{{ S }}[block + 3u + 2u * c];
    let second = weight{{ S }}[block + 4u + 2u * c];
    let first_fifth = weight{{ S }}[block + 1u] >> vec4<u32>(2u * c);
    let second_fifth = weight{{ S }}[block + 2u] >> vec4<u32>(2u * c);
    let nibble = vec4<u32>(0x0f0f0f0fu);
    let low_bit = vec4<u32>(0x01010101u);
    let high_bit = vec4<u32>(0x02020202u);
    let three = vec4<u32>(3u);
    let four = vec4<u32>(4u);
    let part = 4u * unit;  // of 16 elements
    let products = vec4<f32>(vec4<i32>(
        dot16((first & nibble) | ((first_fifth & low_bit) << four), staged[part]),
        dot16((second & nibble) | ((second_fifth & low_bit) << four), staged[part + 1u]),
        dot16(((first >> four) & nibble) | ((first_fifth & high_bit) << three), staged[part + 2u]),
        dot16(((second >> four) & nibble) | ((second_fifth & high_bit) << three), staged[part + 3u]),
    ));
    let scale = vec4<f32>(scales[part], scales[part + 1u], scales[part + 2u], scales[part + 3u]);
    let all = vec4<f32>(vec4<i32>(sums[part], sums[part + 1u], sums[part + 2u], sums[part + 3u]));
    let s = scale_pairs(head.yzw, 2u * c);
    let d = half_scales(head.x);
    return d.x * dot(s.xxyy, scale * products) - d.y * dot(s.zzww, scale * all);
}
