// Quantize four outputs of a row to int8 and store them: outputs n to n + 3, in gated[at] to gated[at + 3].
fn store_int8(row: u32, n: u32, at: u32) {
{% set SHARING = 16 if HALVES_OUT else 32 %}
    let first = at / {{ SHARING }}u * {{ SHARING }}u;
    var bits = 0u;  // of the largest magnitude; among bits those of NaN are the largest
    for (var i = 0u; i < {{ SHARING }}u; i++) {
        bits = max(bits, bitcast<u32>(abs(gated[first + i])));
    }
    let amax = bitcast<f32>(bits);
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    let v = vec4<f32>(gated[at], gated[at + 1u], gated[at + 2u], gated[at + 3u]);
    let units = OUTPUT_ROWS / 64u;
    let unit = 5u * row * units + n / 64u;
    y0[4u * (unit + n % 64u / 16u * units) + n % 16u / 4u] =
        pack4xI8(vec4<i32>(round(v * inverse)));
{% if HALVES_OUT %}
    if (n % 16u == 0u) {
        y0[4u * (unit + 4u * units) + n % 64u / 16u] = bitcast<u32>(amax / 127.0);
    }
{% else %}
    if (n % 32u == 0u) {
        var sum = 0i;
        for (var i = 0u; i < 32u; i++) {
            sum += i32(round(gated[first + i] * inverse));
        }
        let scale = amax / 127.0;
        let target_word = 4u * (unit + 4u * units) + n % 64u / 32u * 2u;
        y0[target_word] = bitcast<u32>(scale);
        y0[target_word + 1u] = bitcast<u32>(scale * f32(sum));
    }
{% endif %}
}
