// The activation of a feed-forward block, {{ ACT }}. Arguments of exp and tanh are clamped to a range
// in which every driver returns finite values; beyond it the results are the same in f32, or nearly zero.
// NaN stays NaN, also where a comparison would hide it.
{% if ACT in ("clamped_silu", "relu", "relu2") %}
{% include "snippets/float_bits.wgsl" %}

{% endif %}
{% if ACT == "clamped_silu" %}
override LIMIT: f32;      // largest gate, and largest magnitude of up
override ALPHA: f32;      // factor on the gate within the sigmoid
override UP_OFFSET: f32;  // added to up

//   g / (1 + exp(-ALPHA g)) (u + UP_OFFSET), both limited first
fn gated_activation(gate: f32, up: f32) -> f32 {
    let g = select(min(gate, LIMIT), gate, is_nan(gate));
    let u = select(clamp(up, -LIMIT, LIMIT), up, is_nan(up));
    return g / (1.0 + exp(min(-ALPHA * g, 80.0))) * (u + UP_OFFSET);
}
{% else %}
{% if ACT == "silu" %}
//   g / (1 + exp(-g))
fn activate(g: f32) -> f32 {
    return g / (1.0 + exp(min(-g, 80.0)));
}
{% elif ACT == "sigmoid" %}
{% include "snippets/sigmoid.wgsl" %}

fn activate(g: f32) -> f32 {
    return sigmoid(g);
}
{% elif ACT == "relu" %}
//   max(g, 0)
fn activate(g: f32) -> f32 {
    return select(max(g, 0.0), g, is_nan(g));
}
{% elif ACT == "relu2" %}
//   max(g, 0)^2
fn activate(g: f32) -> f32 {
    let h = max(g, 0.0);
    return select(h * h, g, is_nan(g));
}
{% elif ACT == "gelu_erf" %}
//   g / 2 (1 + erf(g / sqrt(2))), with erf of Abramowitz and Stegun 7.1.26 (error below 1.5e-7)
fn activate(g: f32) -> f32 {
    let x = min(abs(g) * 0.7071067811865476, 9.0);
    let t = 1.0 / (1.0 + 0.3275911 * x);
    let series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
    let tail = 0.5 * series * exp(-x * x);  // of the normal distribution beyond |g|
    return g * select(tail, 1.0 - tail, g > 0.0);
}
{% else %}
//   g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
fn activate(g: f32) -> f32 {
    let t = 0.7978845608028654 * (g + 0.044715 * g * g * g);
    return 0.5 * g * (1.0 + tanh(clamp(t, -15.0, 15.0)));
}
{% endif %}

fn gated_activation(gate: f32, up: f32) -> f32 {
    return activate(gate) * up;
}
{% endif %}
