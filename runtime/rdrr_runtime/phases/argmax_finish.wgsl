// The best of the groups' candidates becomes the next token, and the step moves on.
//
// best       (f32, u32) [COUNT]
// current    Step
// positions  u32 [max_rows]
// tokens     u32 [max_rows]
// ring       u32 [n]
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> best: array<Candidate>;
@group(0) @binding(1) var<storage, read_write> current: Step;
@group(0) @binding(2) var<storage, read_write> positions: array<u32>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> ring: array<u32>;

override WG: u32;
override COUNT: u32;  // candidates

{% include "snippets/candidate.wgsl" %}
{% include "snippets/advance.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
    var mine = best[0];
    for (var i = thread; i < COUNT; i += WG) {
        mine = better(mine, best[i]);
    }
    let winner = best_of_workgroup(mine, thread);
    if (thread == 0u) {
        advance(winner.index);
    }
}
