// y[0, :] = x[rows - 1, :]
//
// current  Step
// x        {{ VALUE }} [rows, WIDTH]
// y        {{ VALUE }} [1, WIDTH]
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<{{ VALUE }}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ VALUE }}>;

override WIDTH: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < WIDTH) {
        y[id.x] = x[(max(current.rows, 1u) - 1u) * WIDTH + id.x];
    }
}
