// Q4_0: a unit is a block of 32 in 5 words: d as f32 and 16 bytes of nibbles.
alias Word{{ S }} = u32;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 5u;
    let d = bitcast<f32>(weight{{ S }}[block]);
    var sum = vec4<f32>(0.0);
    var all = vec4<f32>(0.0);
{% for i in range(4) %}
    let codes{{ i }} = weight{{ S }}[block + {{ 1 + i }}u];
    let low{{ i }} = (codes{{ i }} & 0x0f0f0f0fu);
    let high{{ i }} = ((codes{{ i }} >> 4u) & 0x0f0f0f0fu);
    let xa{{ i }} = staged[8u * unit + {{ i }}u];
    let xb{{ i }} = staged[8u * unit + {{ 4 + i }}u];
    sum += vec4<f32>(unpack4xU8(low{{ i }})) * xa{{ i }} + vec4<f32>(unpack4xU8(high{{ i }})) * xb{{ i }};
    all += xa{{ i }} + xb{{ i }};
{% endfor %}
    let one = vec4<f32>(1.0);
    return d * (dot(sum, one) - 8.0 * dot(all, one));
}
