// scales[FIRST + n] = abs_max |w| of row n / 32639, so that a weight is at amax 16 bits of it.
//
// weight0 rows of single values, padded with zeros, or of blocks along N; see formats.py
// scales  f32 [N]
//
// An item is a row. 32639 is 127 * 256 + 127: both bytes of a weight then fit int8.
{% set F = FORMATS[0] %}
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> scales: array<f32>;

override FIRST: u32;

{% if F.column %}
{% set DEQUANTIZED = true %}
{% endif %}
{% include "snippets/weights.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

fn abs_max(v: vec4<f32>) -> f32 {
    let amax = max(abs(v.xy), abs(v.zw));
    return max(amax.x, amax.y);
}

fn phase(item: u32, thread: Thread) {
    var amax = 0.0;
{% if F.column %}
    for (var i = thread.index; i < 2u * ROW_UNITS0; i += WG) {
        let unit = weights0(item, i);
{% for i in range(8) %}
        amax = max(amax, abs_max(unit[{{ i }}]));
{% endfor %}
    }
{% else %}
    for (var i = thread.index; i < ROW_UNITS0; i += WG) {
        let word = weight0[item * ROW_UNITS0 + i];
        amax = max(amax, max(abs_max(quad_{{ F.values }}(word.xy)), abs_max(quad_{{ F.values }}(word.zw))));
    }
{% endif %}
    amax = reduce_max(amax, thread);
    if (thread.index == 0u) {
        scales[FIRST + item] = amax / 32639.0;
    }
}
