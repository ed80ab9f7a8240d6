struct Row {
    token: u32,
    position: u32,
    sequence: u32,
    slot: u32,  // slot of the sequence's caches for the key and the value
}

struct Step {
    rows: u32,     // token rows of this pass
    sampled: u32,  // tokens sampled so far
    pad0: u32,
    pad1: u32,
    row: array<Row>,
}
