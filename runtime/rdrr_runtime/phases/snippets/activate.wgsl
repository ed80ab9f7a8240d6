// The activation of a gated feed-forward block, {{ ACT }}. Arguments of exp and tanh are clamped to a range
// in which every driver returns finite values; beyond it the results are the same in f32, or nearly zero.
{% if ACT == "silu" %}
//   g / (1 + exp(-g))
fn activate(g: f32) -> f32 {
    return g / (1.0 + exp(min(-g, 80.0)));
}
{% else %}
//   g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
fn activate(g: f32) -> f32 {
    let t = 0.7978845608028654 * (g + 0.044715 * g * g * g);
    return 0.5 * g * (1.0 + tanh(clamp(t, -15.0, 15.0)));
}
{% endif %}
