// F32: a unit is 32 consecutive weights, 8 words of 16 bytes.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let first = base / 4u + unit * 8u;
{% for i in range(8) %}
    w[{{ i }}] = bitcast<vec4<f32>>(weight[first + {{ i }}u]);
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
