// Q8_0: a unit is a block of 32 weights, 9 words: d (f32), 32 signed bytes. w = d q.
alias Word = u32;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base + unit * 9u;
    let d = bitcast<f32>(weight[block]);
{% for i in range(8) %}
    w[{{ i }}] = d * vec4<f32>(unpack4xI8(weight[block + {{ 1 + i }}u]));
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
