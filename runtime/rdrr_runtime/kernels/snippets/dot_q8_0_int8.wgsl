// Q8_0: a unit is a block of 32 in 9 words, d as f32 and 8 words of int8.
alias Word{{ S }} = u32;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 9u;
    var sum = 0i;
    for (var i = 0u; i < 8u; i++) {
        let x4 = staged[2u * unit + i / 4u][i % 4u];
        sum += dot4I8Packed(weight{{ S }}[block + 1u + i], x4);
    }
    return bitcast<f32>(weight{{ S }}[block]) * scales[unit] * f32(sum);
}
