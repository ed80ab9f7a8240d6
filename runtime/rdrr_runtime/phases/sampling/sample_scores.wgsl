// keys[r, i] = sortable key of the score (logit with penalties and bias) / temperature, or 0 if the mask
// forbids token i. Also writes the largest key of each workgroup to selections[r] and clears its bins.
//
//   if the sequence has seen token i c > 0 times:
//            x = x > 0 ? x / repeat : x * repeat;  x -= presence + c * frequency
//   then     x += bias[i]
//
// current     Step
// params      Params [sequences]
// logits      f32 [rows, WIDTH]
// counts      u32 [sequences, COUNTS_STRIDE]: how often the sequence has seen each token
// bias        f32 [WIDTH]
// mask        u32 [ceil(WIDTH / 32)]: bit i mod 32 of word i / 32
// keys        u32 [rows, WIDTH]
// selections  Selection [rows]
//
// An item is one of GROUPS workgroups of BINS threads, which stride over the tokens of a row.
{% include "snippets/step.wgsl" %}
{% include "sampling/snippets/sampling_params.wgsl" %}
{% include "sampling/snippets/selection.wgsl" %}
{% include "snippets/finite.wgsl" %}
var<storage, read> current: Step;
var<storage, read> params: array<Params>;
var<storage, read> logits: array<f32>;
var<storage, read> counts: array<u32>;
var<storage, read> bias: array<f32>;
var<storage, read> mask: array<u32>;
var<storage, read_write> keys: array<u32>;
var<storage, read_write> selections: array<Selection>;

override WIDTH: u32;
override GROUPS: u32;
override COUNTS_STRIDE: u32;

const MAX_SCORE = 3e38;

fn adjusted(logit: f32, i: u32, sequence: u32) -> f32 {
    var x = logit;
    let seen = counts[sequence * COUNTS_STRIDE + i];
    if (seen > 0u) {
        x *= select(params[sequence].repeat, params[sequence].inverse_repeat, x > 0.0);
        x -= params[sequence].presence + f32(seen) * params[sequence].frequency;
    }
    return clamp((x + bias[i]) * params[sequence].inverse_temperature, -MAX_SCORE, MAX_SCORE);
}

fn phase(item: u32, row: u32, thread: Thread) {
    let first = item * WG + thread.index;
    for (var i = first; i < 2u * STAGES * BINS; i += GROUPS * WG) {
        atomicStore(&selections[row].bins[i], 0u);
    }
    let sequence = current.row[row].sequence;
    var max_key = 0u;
    for (var i = first; i < WIDTH; i += GROUPS * WG) {
        let logit = ranked(logits[row * WIDTH + i]);
        // The key of infinity excludes all others, so that `choose_best` marks the token.
        var key = ordered(select(logit, adjusted(logit, i, sequence), bitcast<u32>(logit) != INFINITY_BITS));
        if (params[sequence].masked == 1u && ((mask[i / 32u] >> (i % 32u)) & 1u) == 0u) {
            key = 0u;
        }
        keys[row * WIDTH + i] = key;
        max_key = max(max_key, key);
    }
    let workgroup_max = workgroup_max_key(max_key, thread.index);
    if (thread.index == 0u) {
        selections[row].max_keys[item] = workgroup_max;
    }
}
