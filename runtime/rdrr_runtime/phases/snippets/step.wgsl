// The token rows of a pass, with their slot mapping; generation_state.py describes the buffer.
struct Row {
    token: u32,
    position: u32,  // for rope
    sequence: u32,
    slot: u32,      // KV slot of the sequence at which the row's key and value are stored
}

struct Step {
    rows: u32,     // token rows of this pass
    sampled: u32,  // tokens sampled so far
    last_n: u32,   // number of last rows whose logits are computed, in passes with last-n logits
    pad: u32,
    row: array<Row>,
}
