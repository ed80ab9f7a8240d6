{% if is_first("float_bits") %}
// Tests of floats for NaN and infinity. They compare bits, since compilers may assume that there are none.
const INFINITY_BITS = 0x7f800000u;

fn is_finite(v: f32) -> bool {
    return (bitcast<u32>(v) & INFINITY_BITS) != INFINITY_BITS;
}

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > INFINITY_BITS;
}
{% endif %}
