// Q8_0: a unit is a block of 32 in 9 words, d as f32 and 8 words of int8.
alias Word{{ S }} = u32;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base + unit * 9u;
    let a = staged[2u * unit];
    let b = staged[2u * unit + 1u];
    var low = 0i;
    var high = 0i;
{% for i in range(4) %}
    low += dot4I8Packed(weight{{ S }}[block + {{ 1 + i }}u], a[{{ i }}]);
    high += dot4I8Packed(weight{{ S }}[block + {{ 5 + i }}u], b[{{ i }}]);
{% endfor %}
    let sum = scales[2u * unit] * f32(low) + scales[2u * unit + 1u] * f32(high);
    return bitcast<f32>(weight{{ S }}[block]) * sum;
}
