// The gates of the delta rule. Arguments of exp are clamped to a range in which every driver returns finite
// values.

// The logarithm of the decay, -exp(rate) softplus(v), where v includes the bias.
fn log_decay_of(v: f32, rate: f32) -> f32 {
    let softplus = max(v, 0.0) + log(1.0 + exp(max(-abs(v), -80.0)));
    return max(-exp(min(rate, 80.0)) * softplus, -80.0);
}

fn write_strength_of(v: f32) -> f32 {
    return 1.0 / (1.0 + exp(-clamp(v, -80.0, 80.0)));
}
