// best[r, g] = the largest score + noise of workgroup g, over the tokens that top-k, top-p and min-p
// keep. With Gumbel noise the overall largest is a sample of their softmax.
//
// current     Step
// params      Params [sequences]
// stage       Stage after the last level of the radix selects
// keys        u32 [rows, WIDTH]
// selections  Selection [rows]
// best        (f32, u32) [rows, GROUPS]: value and index
//
// An item is one of GROUPS workgroups of BINS threads, which stride over the tokens of a row.
{% include "snippets/step.wgsl" %}
{% include "sampling/snippets/sampling_params.wgsl" %}
{% include "sampling/snippets/selection.wgsl" %}
var<storage, read> current: Step;
var<storage, read> params: array<Params>;
var<storage, read> stage: Stage;
var<storage, read> keys: array<u32>;
var<storage, read_write> selections: array<Selection>;
var<storage, read_write> best: array<vec2<u32>>;

override WIDTH: u32;
override GROUPS: u32;

{% include "sampling/snippets/radix_select.wgsl" %}
{% include "snippets/candidate.wgsl" %}
{% include "sampling/snippets/noise.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let own = params[current.row[row].sequence];
    let search = refined_search(stage, row, own.top_k, own.top_p, t);
    let seed = vec2(own.seed_low, own.seed_high);
    let least = from_ordered(row_max_key(row, t)) + own.log_min_p;
    var mine = Candidate(LOWEST, WIDTH - 1u);
    for (var i = item * WG + t; i < WIDTH; i += GROUPS * WG) {
        let key = keys[row * WIDTH + i];
        var score = from_ordered(key);
        if (key >= search.low && score >= least) {
            if (own.noisy == 1u) {
                score += gumbel(random_word(seed, own.sampled, i));
            }
            mine = better(mine, Candidate(score, i));
        }
    }
    let winner = best_of_workgroup(mine, t);
    if (t == 0u) {
        best[row * GROUPS + item] = words_of(winner);
    }
}
