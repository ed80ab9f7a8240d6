struct Step {
    rows: u32,  // token rows of this pass
    base: u32,  // KV slot of row 0
    ring: u32,  // tokens sampled so far
    pad: u32,
}
