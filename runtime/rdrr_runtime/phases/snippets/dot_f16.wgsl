// F16: a unit is 8 consecutive weights, one word of 16 bytes. Needs no shader-f16.
alias Word{{ S }} = vec4<u32>;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let w = weight{{ S }}[base / 4u + unit];
    let a = vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
    let b = vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w));
    return dot(a, staged[2u * unit]) + dot(b, staged[2u * unit + 1u]);
}
