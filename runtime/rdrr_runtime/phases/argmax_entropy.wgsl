// partials[r, g] = of the logits of row r that are g mod GROUPS in blocks of WG: the largest, its
// index, and with m the largest, z = sum exp(l - m) and s = sum (l - m) exp(l - m).
//
// logits    f32 [rows, WIDTH]
// partials  Partial [rows, GROUPS]
//
// An item is one g of a row. Sums are f32.
{% include "snippets/partial_softmax.wgsl" %}
var<storage, read> logits: array<f32>;
var<storage, read_write> partials: array<Partial>;

override WIDTH: u32;
override GROUPS: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    var mine = Partial(LOWEST, WIDTH - 1u, 0.0, 0.0);
    for (var i = item * WG + thread.index; i < WIDTH; i += GROUPS * WG) {
        mine = join(mine, Partial(logits[row * WIDTH + i], i, 1.0, 0.0));
    }
    let all = join_workgroup(mine, thread.index);
    if (thread.index == 0u) {
        partials[row * GROUPS + item] = all;
    }
}
