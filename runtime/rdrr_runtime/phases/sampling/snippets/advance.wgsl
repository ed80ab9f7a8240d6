// Advance the step: the sampled id, unmarked, becomes the only row of the next pass, one position and slot after the
// last row of this pass. Only one thread calls this.
fn advance(id: u32) {
    let last = current.row[current.rows - 1u];
    ring[current.sampled % RING] = id;
    current.row[0] = Row(id & ~NOT_FINITE, last.position + 1u, last.sequence, last.slot + 1u);
    current.rows = 1u;
    current.sampled += 1u;
}
