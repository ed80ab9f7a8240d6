// Argmax, first phase: best[g] = the largest logit (and its index) of group g.
//
// logits  f32 [WIDTH]
// best    (f32, u32) [GROUPS]: value and index; ties go to the lower index
//
// An item is one group. Group g has every GROUPS-th run of WG consecutive logits, from run g on.
var<storage, read> logits: array<f32>;
var<storage, read_write> best: array<vec2<u32>>;

override WIDTH: u32;
override GROUPS: u32;

{% include "snippets/candidate.wgsl" %}

fn phase(item: u32, thread: Thread) {
    var mine = Candidate(LOWEST, WIDTH - 1u);
    for (var i = item * WG + thread.index; i < WIDTH; i += GROUPS * WG) {
        mine = better(mine, Candidate(ranked(logits[i]), i));
    }
    let winner = best_of_workgroup(mine, thread.index);
    if (thread.index == 0u) {
        best[item] = words_of(winner);
    }
}
