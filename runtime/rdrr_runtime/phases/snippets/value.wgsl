// Activations between ops are stored as {{ VALUE }}; shaders compute with them in f32.
{% if VALUE == "f16" %}
// Values beyond the range of f16 saturate, because an infinity would turn the next norm into NaN.
fn value(v: f32) -> f16 {
    return f16(clamp(v, -65504.0, 65504.0));
}

fn value4(v: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}
{% else %}
fn value(v: f32) -> f32 {
    return v;
}

fn value4(v: vec4<f32>) -> vec4<f32> {
    return v;
}
{% endif %}
