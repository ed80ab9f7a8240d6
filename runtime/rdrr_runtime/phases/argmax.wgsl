// best[g] = largest of the logits that are g mod GROUPS in blocks of WG.
//
// logits  f32 [WIDTH]
// best    (f32, u32) [GROUPS]: value and index
//
// An item is one g.
var<storage, read> logits: array<f32>;
var<storage, read_write> best: array<Candidate>;

override WIDTH: u32;
override GROUPS: u32;

{% include "snippets/candidate.wgsl" %}

fn phase(item: u32, thread: Thread) {
    var mine = Candidate(LOWEST, WIDTH - 1u);
    for (var i = item * WG + thread.index; i < WIDTH; i += GROUPS * WG) {
        mine = better(mine, Candidate(logits[i], i));
    }
    let winner = best_of_workgroup(mine, thread.index);
    if (thread.index == 0u) {
        best[item] = winner;
    }
}
