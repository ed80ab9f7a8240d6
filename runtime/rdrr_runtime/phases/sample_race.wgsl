// best[g] = of the tokens that top-k, top-p and min-p keep, workgroup g's largest score + noise:
// with Gumbel noise, a draw from their softmax.
//
// params      Params{% if ROWS %}; all_params those of each sequence{% endif %}

// stage       Stage: the end of the chain
// keys        u32 [{{ "rows, " if ROWS }}WIDTH]
// group_tops  u32 [{{ "rows, " if ROWS }}GROUPS]
// searches    Search [{{ "rows, " if ROWS }}STAGES]
// bins        u32 [{{ "rows, " if ROWS }}2 STAGES BINS]
// best        (f32, u32) [{{ "rows, " if ROWS }}GROUPS]: value and index
// slot_mapping  (u32, u32) [rows]: sequence and slot, only of rows
//
// Threads stride over the tokens.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> {{ "all_params: array<Params>" if ROWS else "params: Params" }};
@group(0) @binding(1) var<storage, read> stage: Stage;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> group_tops: array<u32>;
@group(0) @binding(4) var<storage, read_write> searches: array<Search>;
@group(0) @binding(5) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> best: array<Candidate>;
{% if ROWS %}
@group(0) @binding(7) var<storage, read> slot_mapping: array<vec2<u32>>;
{% endif %}

override WIDTH: u32;

{% include "snippets/narrow.wgsl" %}
{% include "snippets/candidate.wgsl" %}
{% include "snippets/noise.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
{% if ROWS %}
    begin_row(wid.y);
{% endif %}
    let search = narrowed(stage, thread);
    let least = score_of(largest(thread)) + params.log_min_p;
    var mine = Candidate(-3.4028234663852886e38, WIDTH - 1u);
    for (var i = wid.x * WG + thread; i < WIDTH; i += GROUPS * WG) {
        let key = keys[row * WIDTH + i];
        var score = score_of(key);
        if (key >= search.low && score >= least) {
            if (params.noisy == 1u) {
                score += gumbel(random_word(params.seed, params.draw, i));
            }
            mine = better(mine, Candidate(score, i));
        }
    }
    let winner = best_of_workgroup(mine, thread);
    if (thread == 0u) {
        best[row * GROUPS + wid.x] = winner;
    }
}
