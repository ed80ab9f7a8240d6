// F16: a unit is 32 consecutive weights, 4 words of 16 bytes. Needs no shader-f16.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let first = base / 4u + unit * 4u;
    for (var i = 0u; i < 4u; i++) {
        let v = weight[first + i];
        w[2u * i] = vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y));
        w[2u * i + 1u] = vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w));
    }
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
