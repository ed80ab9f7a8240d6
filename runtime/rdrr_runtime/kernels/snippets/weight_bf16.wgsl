// BF16: a unit is 32 consecutive weights, 4 words of 16 bytes; the upper half of an f32.
alias Word = vec4<u32>;

fn bf16_pair(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(
        vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let first = base / 4u + unit * 4u;
    for (var i = 0u; i < 4u; i++) {
        let v = weight[first + i];
        w[2u * i] = bf16_pair(v.x, v.y);
        w[2u * i + 1u] = bf16_pair(v.z, v.w);
    }
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
