{% include "snippets/float_bits.wgsl" %}
{% if is_first("sigmoid") %}

// 1 / (1 + exp(-v)). The argument of exp is clamped to a range in which every driver returns finite values;
// beyond it the result is the same in f32, or nearly zero. NaN stays NaN, which the clamp would hide.
fn sigmoid(v: f32) -> f32 {
    return select(1.0 / (1.0 + exp(-clamp(v, -80.0, 80.0))), v, is_nan(v));
}
{% endif %}
