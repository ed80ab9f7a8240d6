// F16: a unit is 32 consecutive weights, 4 words of 16 bytes. Needs no shader-f16.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let first = base / 4u + unit * 4u;
{% for i in range(4) %}
    let v{{ i }} = weight[first + {{ i }}u];
    w[{{ 2 * i }}] = vec4<f32>(unpack2x16float(v{{ i }}.x), unpack2x16float(v{{ i }}.y));
    w[{{ 2 * i + 1 }}] = vec4<f32>(unpack2x16float(v{{ i }}.z), unpack2x16float(v{{ i }}.w));
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
