// Whether a split has keys: its sum is not 0. Bits are compared, so that a sum that is NaN counts too.
fn has_keys(sum: f32) -> bool {
    return bitcast<u32>(sum) != 0u;
}
