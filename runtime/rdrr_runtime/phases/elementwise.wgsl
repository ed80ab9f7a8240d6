{% if OP == "add" %}
// x = x + r
{% elif OP == "softcap" %}
// x = FACTOR tanh(x / FACTOR)
{% else %}
// x = FACTOR x
{% endif %}
//
// current  Step
// x        {{ X }} [rows, WIDTH]
{% if OP == "add" %}
// r        {{ VALUE }} [rows, WIDTH]
{% endif %}
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read_write> x: array<{{ X }}>;
{% if OP == "add" %}
@group(0) @binding(2) var<storage, read> r: array<{{ VALUE }}>;
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
    let v = f32(x[at]);
{% if OP == "add" %}
    let out = v + f32(r[at]);
{% elif OP == "softcap" %}
    let out = FACTOR * tanh(clamp(v / FACTOR, -15.0, 15.0));
{% else %}
    let out = FACTOR * v;
{% endif %}
    x[at] = {{ "value(out)" if X == VALUE else "out" }};
}
