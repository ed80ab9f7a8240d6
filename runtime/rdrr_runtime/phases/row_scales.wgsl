// scales[FIRST + n] = largest |w| of row n / 32639, so that a weight is at most 16 bits of it.
//
// weight0 ROWS rows of single values, padded with zeros, or of blocks along N; see formats.py
// scales  f32 [N]
//
// A workgroup takes a row. 32639 is 127 * 256 + 127: both bytes of a weight then fit int8.
{% set F = FORMATS[0] %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> scales: array<f32>;

override WG: u32;
override ROWS: u32;
override FIRST: u32;

{% if F.column %}
{% set DEQUANTIZED = true %}
{% endif %}
{% include "snippets/weights.wgsl" %}
{% include "snippets/reduce_max.wgsl" %}

fn largest(v: vec4<f32>) -> f32 {
    let most = max(abs(v.xy), abs(v.zw));
    return max(most.x, most.y);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let row = wid.x + wid.y * groups.x;
    if (row >= ROWS) {
        return;
    }
    var most = 0.0;
{% if F.column %}
    for (var i = thread.index; i < 2u * ROW_UNITS0; i += WG) {
        let unit = weights0(row, i);
{% for i in range(8) %}
        most = max(most, largest(unit[{{ i }}]));
{% endfor %}
    }
{% else %}
    for (var i = thread.index; i < ROW_UNITS0; i += WG) {
        let word = weight0[row * ROW_UNITS0 + i];
        most = max(most, max(largest(quad_{{ F.values }}(word.xy)), largest(quad_{{ F.values }}(word.zw))));
    }
{% endif %}
    most = reduce_max(most, thread);
    if (thread.index == 0u) {
        scales[FIRST + row] = most / 32639.0;
    }
}
