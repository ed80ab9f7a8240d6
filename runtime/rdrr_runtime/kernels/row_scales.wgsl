// scales[FIRST + n] = largest |w| of row n / 32639, so that a weight is at most 16 bits of it.
//
// weight  rows of type {{ WEIGHT }} [ROWS, ROW_WORDS], padded with zeros to 16 bytes
// scales  f32 [N]
//
// A workgroup takes a row. 32639 is 127 * 256 + 127: both bytes of a weight then fit int8.
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> scales: array<f32>;

override WG: u32;
override ROWS: u32;
override ROW_WORDS: u32;
override FIRST: u32;

{% include "snippets/quad_" ~ WEIGHT ~ ".wgsl" %}
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
    let words = ROW_WORDS / 4u;
    var most = 0.0;
    for (var i = thread.index; i < words; i += WG) {
        let word = weight[row * words + i];
        most = max(most, max(largest(quad(word.x, word.y)), largest(quad(word.z, word.w))));
    }
    most = reduce_max(most, thread);
    if (thread.index == 0u) {
        scales[FIRST + row] = most / 32639.0;
    }
}
