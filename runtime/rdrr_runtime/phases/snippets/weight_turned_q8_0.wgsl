// Turned Q8_0, see turn_blocks.wgsl: a unit is 32 consecutive weights of a row.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let factors = FACTORS + base / ROW_WORDS / 32u * (K_TURNED / 4u) + unit * 8u;
    let first = base / 4u + unit * 2u;
{% for half in range(2) %}
    let codes{{ half }} = weight[first + {{ half }}u];
{% endfor %}
{% for i in range(8) %}
    let d{{ i }} = bitcast<vec4<f32>>(weight[factors + {{ i }}u]);
    w[{{ i }}] = d{{ i }} * vec4<f32>(unpack4xI8(codes{{ i // 4 }}[{{ i % 4 }}]));
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
