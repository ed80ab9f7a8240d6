// The sampled id becomes the row after the last one of this pass, the only row of the next; run by
// one thread.
fn advance(id: u32) {
    let last = current.row[current.rows - 1u];
    ring[current.sampled % RING] = id;
    current.row[0] = Row(id, last.position + 1u, last.sequence, last.slot + 1u);
    current.rows = 1u;
    current.sampled += 1u;
}
