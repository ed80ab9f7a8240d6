// picks[r] = (the best of row r's candidates, 0); its sequence has seen it once more and made a draw.
//
// best        (f32, u32) [rows, GROUPS]
// picks       (u32, f32) [rows]: id and entropy, which nobody asks about
// all_params  Params [sequences]
// counts      u32 [sequences, COUNTS]
// slot_mapping  (u32, u32) [rows]: sequence and slot
//
// A workgroup for each row; no two rows are of one sequence.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> best: array<Candidate>;
@group(0) @binding(1) var<storage, read_write> picks: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> all_params: array<Params>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;
@group(0) @binding(4) var<storage, read> slot_mapping: array<vec2<u32>>;

override COUNTS: u32;

{% include "snippets/candidate.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    begin_row(wid.y);
    let mine = best[row * GROUPS + min(thread, GROUPS - 1u)];
    let winner = best_of_workgroup(mine, thread);
    if (thread == 0u) {
        picks[row] = vec2<u32>(winner.index, 0u);
        counts[sequence * COUNTS + winner.index] += 1u;
        all_params[sequence].draw += 1u;
    }
}
