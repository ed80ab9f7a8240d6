{% include "snippets/float_bits.wgsl" %}

// The length of a step of the state space, softplus(STEP_SCALE step + step_bias) within its limits, for a row and head.
// ln(1 + u) is computed as 2 artanh(u / (2 + u)), because `log` has a large relative error near 1, and most
// steps are short. Where the decay would be NaN, the length is NaN: limits of both would hide it.
fn step_length(row: u32, head: u32) -> f32 {
    let v = STEP_SCALE * f32(step[row * HEADS + head]) + rates[HEADS + head];
    let u = exp(max(-abs(v), -80.0));
    let s = u / (2.0 + u);
    let q = s * s;
    let series = 1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q / 11.0))));
    let length = clamp(max(v, 0.0) + 2.0 * s * series, LEAST_STEP, MOST_STEP);
    return select(length, v + rates[head], is_nan(v + rates[head]));
}

// The logarithm of the decay over a step. Arguments of exp are clamped to a range in which every driver
// returns finite values.
fn log_decay(length: f32, head: u32) -> f32 {
    return max(-exp(min(rates[head], 80.0)) * length, -80.0);
}
