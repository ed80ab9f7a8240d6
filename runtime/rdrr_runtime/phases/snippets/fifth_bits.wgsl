// The fifth bits of four codes, bits 0..3 of `bits`, as bit 4 of four bytes. Of the shifted copies
// in the product each byte keeps one bit, so that no carry reaches another.
fn fifth_bits(bits: u32) -> u32 {
    return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4u;
}
