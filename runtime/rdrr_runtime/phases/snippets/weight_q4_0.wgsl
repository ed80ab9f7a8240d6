// Q4_0: a unit is a block of 32 weights, 5 words: d (f32), 16 bytes of nibbles, the low ones of
// weights 0..15, the high ones of 16..31. w = d (q - 8).
alias Word = u32;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base + unit * 5u;
    let d = bitcast<f32>(weight[block]);
{% for i in range(4) %}
    let codes{{ i }} = weight[block + {{ 1 + i }}u];
    w[{{ i }}] = d * (vec4<f32>(unpack4xU8(codes{{ i }} & 0x0f0f0f0fu)) - 8.0);
    w[{{ 4 + i }}] = d * (vec4<f32>(unpack4xU8((codes{{ i }} >> 4u) & 0x0f0f0f0fu)) - 8.0);
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
