// Sampling parameters of a sequence; `pack_params` in sample_buffers.py writes them.
struct Params {
    inverse_temperature: f32,
    repeat: f32,            // repeat penalty: factor on negative logits of tokens seen before
    inverse_repeat: f32,    // factor on their positive logits
    frequency: f32,         // subtracted from a logit for each time that its token was seen
    presence: f32,          // subtracted once if its token was seen
    top_k: f32,
    top_p: f32,
    log_min_p: f32,         // log(min-p): smallest allowed difference of a score from the largest
    seed: vec2<u32>,
    sampled: u32,           // tokens sampled so far, an input of the random numbers
    noisy: u32,             // 1: add Gumbel noise; 0: the largest score wins
    masked: u32,            // 1: sample only tokens whose bit is set in the mask
    pad0: u32,
    pad1: u32,
    pad2: u32,
}
