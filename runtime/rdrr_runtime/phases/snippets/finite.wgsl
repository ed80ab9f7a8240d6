// How logits that are no finite numbers are found.
{% include "snippets/float_bits.wgsl" %}
const LOWEST = -3.4028234663852886e38;
const NOT_FINITE = 0x80000000u;  // the bit of an id that says that its logits are not finite

// A logit as candidates are ordered: NaN counts as infinity, so that it wins instead of being passed over.
fn ranked(logit: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(logit), INFINITY_BITS, is_nan(logit)));
}

// The id of the largest logit, marked if a logit is NaN or infinite, or if none is above -infinity.
fn marked(index: u32, largest: f32) -> u32 {
    return select(index | NOT_FINITE, index & ~NOT_FINITE, is_finite(largest) && largest > LOWEST);
}
