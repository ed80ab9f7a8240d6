// States absorb only the rows that no later pass takes back. A window over draft tokens has `last_n` rows
// with logits: the first of them is certain, the others are drafts. Other passes want one row.
fn kept_rows() -> u32 {
    return current.rows + 1u - max(current.last_n, 1u);
}
