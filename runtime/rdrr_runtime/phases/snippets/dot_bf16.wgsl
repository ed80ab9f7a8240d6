// BF16: a unit is 8 consecutive weights, one word of 16 bytes.
alias Word{{ S }} = vec4<u32>;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let w = weight{{ S }}[base / 4u + unit];
    let low = bitcast<vec4<f32>>(w << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(w & vec4<u32>(0xffff0000u));
    let a = staged[2u * unit];
    let b = staged[2u * unit + 1u];
    return dot(low, vec4<f32>(a.xz, b.xz)) + dot(high, vec4<f32>(a.yw, b.yw));
}
