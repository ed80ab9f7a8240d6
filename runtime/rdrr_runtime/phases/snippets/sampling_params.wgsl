// How the tokens of a sequence are sampled; `pack_params` lays it out.
struct Params {
    inverse_temperature: f32,
    repeat: f32,            // factor of the logits of tokens seen before, below zero
    inverse_repeat: f32,    // and above
    frequency: f32,         // subtracted for each time that a token was seen
    presence: f32,          // and once
    top_k: f32,
    top_p: f32,
    log_min_p: f32,         // the least difference of a score to the largest
    seed: vec2<u32>,
    sampled: u32,           // tokens sampled so far, which the noise depends on
    noisy: u32,             // 0: the largest score wins
    masked: u32,            // 1: only tokens whose bit is set in the mask
    pad0: u32,
    pad1: u32,
    pad2: u32,
}
