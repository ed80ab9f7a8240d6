// Turned Q8_0: a unit is 64 codes in 4 words; factors for each group of 32 outputs are d[k] as f32.

fn group_of{{ S }}(row: u32) -> vec2<u32> {
    return vec2<u32>(FACTORS{{ S }} + row / 32u * (K_STAGED / 4u), 0u);
}

fn factor{{ S }}(group: vec2<u32>, i: u32, v: vec4<f32>) -> Scaled {
    return Scaled(v * bitcast<vec4<f32>>(weight{{ S }}[group.x + i]), 0.0);
}

fn products{{ S }}(row: u32, unit: u32, at: u32) -> vec4<f32> {
    let first = (row * (K_STAGED / 64u) + unit) * 4u;
    return vec4<f32>(vec4<i32>(
        dot16(weight{{ S }}[first], staged[at]),
        dot16(weight{{ S }}[first + 1u], staged[at + 1u]),
        dot16(weight{{ S }}[first + 2u], staged[at + 2u]),
        dot16(weight{{ S }}[first + 3u], staged[at + 3u]),
    ));
}
