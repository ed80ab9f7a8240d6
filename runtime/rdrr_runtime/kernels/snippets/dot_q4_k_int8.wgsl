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
    let part = (unit / 8u) * 16u + 2u * sub + unit % 2u;  // of 16 elements
    let a = staged[part];
    let b = staged[part + 2u];
    let products = vec2<i32>(
        dot4I8Packed(low.x, a.x) + dot4I8Packed(low.y, a.y)
            + dot4I8Packed(low.z, a.z) + dot4I8Packed(low.w, a.w),
        dot4I8Packed(high.x, b.x) + dot4I8Packed(high.y, b.y)
            + dot4I8Packed(high.z, b.z) + dot4I8Packed(high.w, b.w),
    );
    let s = scale_pairs(head.yzw, sub);
    let d = half_scales(head.x);
    let value = d.x * s.xy * vec2<f32>(products)
        - d.y * s.zw * vec2<f32>(vec2<i32>(sums[part], sums[part + 2u]));
    return dot(vec2<f32>(scales[part], scales[part + 2u]), value);
}
