// best[g] = of the tokens that top-k, top-p and min-p keep, workgroup g's largest score + noise:
// with Gumbel noise, a draw from their softmax.
//
// params      Params
// stage       Stage: the end of the chain
// keys        u32 [WIDTH]
// group_tops  u32 [GROUPS]
// searches    Search [STAGES]
// bins        u32 [2 STAGES BINS]
// best        (f32, u32) [GROUPS]: value and index
//
// Threads stride over the tokens.
{% include "snippets/sampling.wgsl" %}
@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> stage: Stage;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> group_tops: array<u32>;
@group(0) @binding(4) var<storage, read_write> searches: array<Search>;
@group(0) @binding(5) var<storage, read_write> bins: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> best: array<Candidate>;

override WIDTH: u32;

{% include "snippets/narrow.wgsl" %}
{% include "snippets/candidate.wgsl" %}
{% include "snippets/noise.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let search = narrowed(stage, thread);
    let least = score_of(largest(thread)) + params.log_min_p;
    var mine = Candidate(-3.4028234663852886e38, WIDTH - 1u);
    for (var i = wid.x * WG + thread; i < WIDTH; i += GROUPS * WG) {
        let key = keys[i];
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
        best[wid.x] = winner;
    }
}
