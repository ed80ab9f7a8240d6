// y[r, :] = x[rows - n + r, :], the last n rows of a pass, for a launch of n workgroups along y.
//
// current  Step
// x        {{ VALUE }} [rows, WIDTH]
// y        {{ VALUE }} [n, WIDTH]
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<{{ VALUE }}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ VALUE }}>;

override WIDTH: u32;

@compute @workgroup_size(64)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if (id.x < WIDTH) {
        let first = max(current.rows, groups.y) - groups.y;
        y[id.y * WIDTH + id.x] = x[(first + id.y) * WIDTH + id.x];
    }
}
