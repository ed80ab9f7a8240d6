// The factors of a row and value head in the delta rule. Arguments of exp are clamped to a range in which
// every driver returns finite values.
fn log_decay(row: u32, head: u32) -> f32 {
    let v = f32(decay[row * HEADS + head]) + rates[HEADS + head];
    let softplus = max(v, 0.0) + log(1.0 + exp(max(-abs(v), -80.0)));
    return max(-exp(min(rates[head], 80.0)) * softplus, -80.0);
}

fn write_strength(row: u32, head: u32) -> f32 {
    return 1.0 / (1.0 + exp(-clamp(f32(strength[row * HEADS + head]), -80.0, 80.0)));
}
