// The best of the groups' candidates becomes the next token; it has been seen once more, one more
// draw was made, and the step moves on.
//
// best       (f32, u32) [COUNT]
// current    Step
// positions  u32 [max_rows]
// tokens     u32 [max_rows]
// ring       u32 [n]
// params     Params
// counts     u32 [vocabulary]
{% include "snippets/step.wgsl" %}
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> best: array<Candidate>;
@group(0) @binding(1) var<storage, read_write> current: Step;
@group(0) @binding(2) var<storage, read_write> positions: array<u32>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> ring: array<u32>;
@group(0) @binding(5) var<storage, read_write> params: Params;
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;

{% include "snippets/candidate.wgsl" %}
{% include "snippets/advance.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32) {
    var mine = best[0];
    if (thread < GROUPS) {
        mine = best[thread];
    }
    let winner = best_of_workgroup(mine, thread);
    if (thread == 0u) {
        advance(winner.index);
        counts[winner.index] += 1u;
        params.draw += 1u;
    }
}
