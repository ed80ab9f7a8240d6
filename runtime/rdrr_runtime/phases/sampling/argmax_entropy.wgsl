// Argmax and entropy of softmax, first phase: partials[r, g] = the partial result of group g of row r,
// the largest logit m, its index, z = sum exp(l - m) and s = sum (l - m) exp(l - m) over the logits l.
//
// logits    f32 [rows, WIDTH]
// partials  Partial [rows, GROUPS]
//
// An item is one group of a row: every GROUPS-th run of WG consecutive logits. Accumulates in f32.
{% include "sampling/snippets/partial_softmax.wgsl" %}
var<storage, read> logits: array<f32>;
var<storage, read_write> partials: array<Partial>;

override WIDTH: u32;
override GROUPS: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    var mine = Partial(LOWEST, WIDTH - 1u, 0.0, 0.0);
    for (var i = item * WG + thread.index; i < WIDTH; i += GROUPS * WG) {
        mine = join(mine, Partial(ranked(logits[row * WIDTH + i]), i, 1.0, 0.0));
    }
    let all = join_workgroup(mine, thread.index);
    if (thread.index == 0u) {
        partials[row * GROUPS + item] = all;
    }
}
