// Tests of floats for NaN and infinity. They compare bits, since compilers may assume that there are none.
const LOWEST = -3.4028234663852886e38;
const INFINITY_BITS = 0x7f800000u;
const NOT_FINITE = 0x80000000u;  // the bit of an id that says that its logits are not finite

fn is_finite(v: f32) -> bool {
    return (bitcast<u32>(v) & INFINITY_BITS) != INFINITY_BITS;
}

// A logit as candidates are ordered: NaN counts as infinity, so that it wins instead of being passed over.
fn ranked(logit: f32) -> f32 {
    let bits = bitcast<u32>(logit);
    return bitcast<f32>(select(bits, INFINITY_BITS, (bits & ~NOT_FINITE) > INFINITY_BITS));
}

// The id of the largest logit, marked if a logit is NaN or infinite, or if none is above -infinity.
fn marked(index: u32, largest: f32) -> u32 {
    return select(index | NOT_FINITE, index & ~NOT_FINITE, is_finite(largest) && largest > LOWEST);
}
