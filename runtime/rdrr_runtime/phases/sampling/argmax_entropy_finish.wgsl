// Argmax and entropy of softmax, second phase: picks[r] = index of the largest logit of row r, and the
// entropy H = ln z - s / z of softmax(logits[r]) in nats.
//
// partials  Partial [rows, WG], see argmax_entropy.wgsl
// picks     (u32, f32) [rows]: index, marked if the logits are not finite, and entropy
//
// One call for each row; each thread reads one partial result.
{% include "sampling/snippets/partial_softmax.wgsl" %}
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
        picks[row] = Pick(marked(all.index, all.value), log(z) - all.s / z);
    }
}
