// scales[FIRST + n] = largest |w| of row n / 32639, so that a weight is at most 16 bits of it.
//
// weight  rows of type {{ WEIGHT }} [ROWS, ROW_WORDS], padded with zeros
// scales  f32 [N]
//
// A workgroup takes a row. 32639 is 127 * 256 + 127: both bytes of a weight then fit int8.
{% set TURNED = WEIGHT.startswith("turned") %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> scales: array<f32>;

override WG: u32;
override ROWS: u32;
override ROW_WORDS: u32;
override FIRST: u32;

{% if TURNED %}
override FACTORS: u32;
override K_TURNED: u32;

{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}
{% else %}
{% include "snippets/quad_" ~ WEIGHT ~ ".wgsl" %}
{% endif %}
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
{% if TURNED %}
    for (var i = thread.index; i < K_TURNED / 32u; i += WG) {
        let unit = load_unit(row * ROW_WORDS, i);
{% for i in range(8) %}
        most = max(most, largest(unit[{{ i }}]));
{% endfor %}
    }
{% else %}
    let words = ROW_WORDS / 4u;
    for (var i = thread.index; i < words; i += WG) {
        let word = weight[row * words + i];
        most = max(most, max(largest(quad(word.x, word.y)), largest(quad(word.z, word.w))));
    }
{% endif %}
    most = reduce_max(most, thread);
    if (thread.index == 0u) {
        scales[FIRST + row] = most / 32639.0;
    }
}
