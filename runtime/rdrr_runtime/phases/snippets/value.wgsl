// Activations between ops are stored as {{ VALUE }}; shaders compute with them in f32.
{% if VALUE == "f16" %}
// Values beyond the range of f16 become infinite, which makes the logits NaN: the host then refuses the
// tokens and names a wider type. Limits would give tokens of another model without a word.
fn value(v: f32) -> f16 {
    return f16(v);
}

fn value4(v: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(v);
}
{% else %}
fn value(v: f32) -> f32 {
    return v;
}

fn value4(v: vec4<f32>) -> vec4<f32> {
    return v;
}
{% endif %}
