// Q8_0: a unit is a block of 32 in 9 words, d as f32 and 8 words of int8.
alias Word{{ S }} = u32;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 9u;
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {
        sum += dot(vec4<f32>(unpack4xI8(weight{{ S }}[block + 1u + i])), staged[8u * unit + i]);
    }
    return bitcast<f32>(weight{{ S }}[block]) * sum;
}
