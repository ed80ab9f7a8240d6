// The decay of the delta rule, and the sigmoid of its write strength.
{% include "snippets/sigmoid.wgsl" %}

// The logarithm of the decay, -exp(rate) softplus(v), where v includes the bias. Arguments of exp are limited
// to a range in which every driver returns finite values. NaN stays NaN, which the limits would hide.
fn log_decay_of(v: f32, rate: f32) -> f32 {
    let softplus = max(v, 0.0) + log(1.0 + exp(max(-abs(v), -80.0)));
    return select(max(-exp(min(rate, 80.0)) * softplus, -80.0), v + rate, is_nan(v + rate));
}
