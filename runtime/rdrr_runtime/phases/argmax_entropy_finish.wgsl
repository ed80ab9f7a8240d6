// picks[r] = index of the largest logit of row r, and the entropy of softmax(logits[r]) in nats:
// H = ln z - s / z.
//
// parts  Part [rows, WG]
// picks  (u32, f32) [rows]
{% include "snippets/softmax_part.wgsl" %}
struct Pick {
    index: u32,
    entropy: f32,
}
@group(0) @binding(0) var<storage, read> parts: array<Part>;
@group(0) @binding(1) var<storage, read_write> picks: array<Pick>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let all = join_workgroup(parts[wid.x * WG + thread], thread);
    if (thread == 0u) {
        let z = max(all.z, 1.0);
        picks[wid.x] = Pick(all.index, log(z) - all.s / z);
    }
}
