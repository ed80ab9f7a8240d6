// parts[r, g] = of the logits of row r that are g mod GROUPS in blocks of WG: the largest, its index, and
// with m the largest, z = sum exp(l - m) and s = sum (l - m) exp(l - m).
//
// logits  f32 [rows, WIDTH]
// parts   Part [rows, GROUPS]
{% include "snippets/softmax_part.wgsl" %}
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<Part>;

override WIDTH: u32;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    var mine = Part(LOWEST, WIDTH - 1u, 0.0, 0.0);
    for (var i = wid.x * WG + thread; i < WIDTH; i += groups.x * WG) {
        mine = join_parts(mine, Part(logits[wid.y * WIDTH + i], i, 1.0, 0.0));
    }
    let all = join_workgroup(mine, thread);
    if (thread == 0u) {
        parts[wid.y * groups.x + wid.x] = all;
    }
}
