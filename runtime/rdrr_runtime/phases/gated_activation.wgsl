// y = act(gate) * up, act = {{ ACT }}.
//   silu       g / (1 + exp(-g))
//   gelu_tanh  g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
//
// current   Step
{% if FUSED %}
// gate_up   {{ VALUE }} [rows, 2 WIDTH]: gate, then up
{% else %}
// gate, up  {{ VALUE }} [rows, WIDTH]
{% endif %}
// y         {{ VALUE }} [rows, WIDTH]
//
// A thread computes 4 elements.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<{{ VALUE }}>>;
{% if FUSED %}
@group(0) @binding(2) var<storage, read> gate_up: array<vec4<{{ VALUE }}>>;
{% else %}
@group(0) @binding(2) var<storage, read> gate: array<vec4<{{ VALUE }}>>;
@group(0) @binding(3) var<storage, read> up: array<vec4<{{ VALUE }}>>;
{% endif %}

override WIDTH: u32;

{% if ACT == "silu" %}
fn act(g: vec4<f32>) -> vec4<f32> {
    return g / (1.0 + exp(min(-g, vec4<f32>(80.0))));
}
{% else %}
fn act(g: vec4<f32>) -> vec4<f32> {
    // tanh overflows on some drivers, and is 1 in f32 from 10 on.
    let t = 0.7978845608028654 * (g + 0.044715 * g * g * g);
    return 0.5 * g * (1.0 + tanh(clamp(t, vec4<f32>(-15.0), vec4<f32>(15.0))));
}
{% endif %}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let words = WIDTH / 4u;
    let row = id.y;
    if (row >= current.rows || id.x >= words) {
        return;
    }
{% if FUSED %}
    let first = row * 2u * words + id.x;
    y[row * words + id.x] =
        value4(act(vec4<f32>(gate_up[first])) * vec4<f32>(gate_up[first + words]));
{% else %}
    let at = row * words + id.x;
    y[at] = value4(act(vec4<f32>(gate[at])) * vec4<f32>(up[at]));
{% endif %}
}
