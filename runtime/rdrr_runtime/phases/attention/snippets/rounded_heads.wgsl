// The sum of the weights of a head, which `writers` threads have added up.
fn total_of(head: u32, writers: u32) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < writers; i++) {
        sum += totals[head * TEAMS + i];
    }
    return sum;
}
{% if ROUNDED != "f16" %}
{% set SHARING = 4 if HALVES else 8 %}
{% include "snippets/abs_max.wgsl" %}

// Quantize 4 elements of the heads in `query`, of which `i` vectors are before them and `at` in the row.
fn store_int8(row: u32, i: u32, at: u32) {
    let first = i / {{ SHARING }}u * {{ SHARING }}u;
    var bits = 0u;
    for (var j = 0u; j < {{ SHARING }}u; j++) {
        bits = max(bits, bits_of_abs_max(query[first + j]));
    }
    let amax = bitcast<f32>(bits);
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    let units = HEADS * HEAD_DIM / 64u;
    y[4u * ((5u * row + at % 16u / 4u) * units + at / 16u) + at % 4u] = pack4xI8(vec4<i32>(round(query[i] * inverse)));
    if (i == first) {
        let scale = amax / 127.0;
{% if HALVES %}
        y[4u * (5u * row + 4u) * units + at / 4u] = bitcast<u32>(scale);
{% else %}
        var sum = 0i;
        for (var j = 0u; j < {{ SHARING }}u; j++) {
            sum += dot4I8Packed(pack4xI8(vec4<i32>(round(query[first + j] * inverse))), 0x01010101u);
        }
        let scale_at = 4u * (5u * row + 4u) * units + at / 8u * 2u;
        y[scale_at] = bitcast<u32>(scale);
        y[scale_at + 1u] = bitcast<u32>(scale * f32(sum));
{% endif %}
    }
}
{% endif %}
