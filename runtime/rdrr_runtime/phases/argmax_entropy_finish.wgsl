// picks[r] = index of the largest logit of row r, and the entropy of softmax(logits[r]) in nats:
// H = ln z - s / z.
//
// partials  Partial [rows, WG]
// picks     (u32, f32) [rows]
//
// One workgroup a row.
{% include "snippets/partial_softmax.wgsl" %}
struct Pick {
    index: u32,
    entropy: f32,
}
var<storage, read> partials: array<Partial>;
var<storage, read_write> picks: array<Pick>;

fn phase(row: u32, thread: Thread) {
    let all = join_workgroup(partials[row * WG + thread.index], thread.index);
    if (thread.index == 0u) {
        let z = max(all.z, 1.0);
        picks[row] = Pick(all.index, log(z) - all.s / z);
    }
}
