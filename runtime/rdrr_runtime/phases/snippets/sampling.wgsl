// What the kernels of sampling share, see `phases/sample.py`.
struct Params {
    inverse_temperature: f32,
    repeat: f32,            // factor of the logits of tokens seen before, below zero
    inverse_repeat: f32,    // and above
    frequency: f32,         // taken off for each time that a token was seen
    presence: f32,          // and once
    top_k: f32,
    top_p: f32,
    log_min_p: f32,         // a score may lie so far below the largest
    seed: vec2<u32>,
    draw: u32,              // draws made so far
    noisy: u32,             // 0: the largest score wins
    masked: u32,            // 1: only tokens whose bit is set in the mask
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

// A threshold under search: tokens below `low` are out already; those between agree with `prefix`
// in the bits of the levels done. `goal` of the weight above the threshold is still to be found.
struct Search {
    low: u32,
    prefix: u32,
    goal: f32,
    pad: u32,
}

{% if ROWS %}
var<private> params: Params;  // of the row that the workgroup works for, as of now
var<private> row: u32;
var<private> sequence: u32;   // that the row is of

fn begin_row(index: u32) {
    row = index;
    sequence = slot_mapping[row].x;
    params = all_params[sequence];
}
{% else %}
const row = 0u;
const sequence = 0u;
{% endif %}

const GROUPS = {{ GROUPS }}u;
const STAGES = {{ STAGES }}u;
const LEVELS = 4u;  // of eight bits of a key
const BINS = 256u;
const WG = BINS;

// A score as a word of the same order; 0 is a token that must not be drawn.
fn key_of(score: f32) -> u32 {
    let bits = bitcast<u32>(score);
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

fn score_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, key >> 31u == 1u));
}
