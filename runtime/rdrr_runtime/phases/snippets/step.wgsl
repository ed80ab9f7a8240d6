struct Row {
    token: u32,
    position: u32,
    sequence: u32,
    slot: u32,  // of the sequence's caches, where its key and value go
}

struct Step {
    rows: u32,     // token rows of this pass
    sampled: u32,  // tokens sampled so far
    wanted: u32,   // last rows whose logits are computed, where a pass can be asked for several
    pad: u32,
    row: array<Row>,
}
