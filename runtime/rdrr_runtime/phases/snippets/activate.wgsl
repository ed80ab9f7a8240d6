// The gate of a gated feed-forward: SiLU, or GELU by tanh, whose argument is clamped.
fn activate(v: f32) -> f32 {
{% if ACT == "silu" %}
    return v / (1.0 + exp(-v));
{% else %}
    let inner = 0.7978845608028654 * (v + 0.044715 * v * v * v);
    return 0.5 * v * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
{% endif %}
}
