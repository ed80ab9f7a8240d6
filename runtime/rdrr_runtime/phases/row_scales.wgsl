// scales[FIRST + n] = max|w| of row n / 32639, the scale with which weights are rounded to 16 bits.
//
// weight0  zero-padded rows of unquantized values, layout as in formats.py
// scales   f32 [N]
//
// An item is one row. The divisor is 127 * 256 + 127 = 32639, so that both bytes of a weight fit int8.
{% set F = FORMATS[0] %}
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> scales: array<f32>;

override FIRST: u32;

{% include "snippets/weights.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

fn abs_max(v: vec4<f32>) -> f32 {
    let amax = max(abs(v.xy), abs(v.zw));
    return max(amax.x, amax.y);
}

fn phase(item: u32, thread: Thread) {
    var amax = 0.0;
    for (var i = thread.index; i < ROW_UNITS0; i += WG) {
        let word = weight0[item * ROW_UNITS0 + i];
        amax = max(amax, max(abs_max(quad_{{ F.values }}(word.xy)), abs_max(quad_{{ F.values }}(word.zw))));
    }
    amax = reduce_max(amax, thread);
    if (thread.index == 0u) {
        scales[FIRST + item] = amax / 32639.0;
    }
}
