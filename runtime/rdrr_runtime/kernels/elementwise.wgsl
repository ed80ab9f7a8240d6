{% if OP == "add" %}
// x = x + r
{% elif OP == "softcap" %}
// x = FACTOR tanh(x / FACTOR)
{% else %}
// x = FACTOR x
{% endif %}
//
// current  Step
// x        f32 [rows, WIDTH]
{% if OP == "add" %}
// r        f32 [rows, WIDTH]
{% endif %}
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
{% if OP == "add" %}
@group(0) @binding(2) var<storage, read> r: array<f32>;
{% endif %}

override WIDTH: u32;
override FACTOR: f32 = 1.0;
override SINGLE_ROW: bool = false;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.y >= select(current.rows, 1u, SINGLE_ROW) || id.x >= WIDTH) {
        return;
    }
    let at = id.y * WIDTH + id.x;
{% if OP == "add" %}
    x[at] += r[at];
{% elif OP == "softcap" %}
    x[at] = FACTOR * tanh(clamp(x[at] / FACTOR, -15.0, 15.0));
{% else %}
    x[at] *= FACTOR;
{% endif %}
}
