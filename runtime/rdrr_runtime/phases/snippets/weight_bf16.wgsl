// BF16: a unit is 32 consecutive weights, 4 words of 16 bytes; the upper half of an f32.
alias Word = vec4<u32>;

fn bf16_pair(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(
        vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let first = base / 4u + unit * 4u;
{% for i in range(4) %}
    let v{{ i }} = weight[first + {{ i }}u];
    w[{{ 2 * i }}] = bf16_pair(v{{ i }}.x, v{{ i }}.y);
    w[{{ 2 * i + 1 }}] = bf16_pair(v{{ i }}.z, v{{ i }}.w);
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
