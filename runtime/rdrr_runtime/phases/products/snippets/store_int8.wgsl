// Quantize the gated outputs of `count` tiles of an item to int8 and store them; the first is of step `first`. The
// outputs of a tile are whole groups of 16, each with a scale.
fn store_int8(item: u32, first: u32, count: u32, thread: u32) {
    for (var i = thread; i < count * (ROWS / 4u); i += WG) {
        let word = ((first + i / (ROWS / 4u)) * STRIDE + item) * (ROWS / 4u) + i % (ROWS / 4u);
        if (4u * word >= {{ "N0 / 2u" if MATRICES == 1 else "N0" }}) {
            continue;
        }
        let group = i / 4u * 16u;
        var bits = 0u;  // of the largest magnitude; among bits those of NaN are the largest
        for (var i = 0u; i < 16u; i++) {
            bits = max(bits, bitcast<u32>(abs(gated[group + i])));
        }
        let amax = bitcast<f32>(bits);
        let inverse = select(0.0, 127.0 / amax, amax > 0.0);
        let at = 4u * i;
        let v = vec4<f32>(gated[at], gated[at + 1u], gated[at + 2u], gated[at + 3u]);
        y[word] = pack4xI8(vec4<i32>(round(v * inverse)));
        if (word % 4u == 0u) {
            var all = 0i;
            for (var i = 0u; i < 16u; i++) {
                all += i32(round(gated[group + i] * inverse));
            }
            y_scales[word / 4u] = vec2<f32>(amax / 127.0, bitcast<f32>(all));
        }
    }
}
