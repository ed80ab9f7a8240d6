// best[g] = largest of the last row's logits that are g mod GROUPS in blocks of WG.
//
// current  Step
// logits   f32 [rows, WIDTH]
// best     (f32, u32) [GROUPS]: value and index
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read_write> best: array<Candidate>;

override WG: u32;
override WIDTH: u32;
override SINGLE_ROW: bool = false;

{% include "snippets/candidate.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = select(max(current.rows, 1u) - 1u, 0u, SINGLE_ROW);
    var mine = Candidate(-3.4028234663852886e38, WIDTH - 1u);
    for (var i = wid.x * WG + thread; i < WIDTH; i += groups.x * WG) {
        mine = better(mine, Candidate(logits[row * WIDTH + i], i));
    }
    let winner = best_of_workgroup(mine, thread);
    if (thread == 0u) {
        best[wid.x] = winner;
    }
}
