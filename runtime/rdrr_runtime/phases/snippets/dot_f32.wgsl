// F32: a unit is 4 consecutive weights.
alias Word{{ S }} = vec4<f32>;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    return dot(weight{{ S }}[base / 4u + unit], staged[unit]);
}
