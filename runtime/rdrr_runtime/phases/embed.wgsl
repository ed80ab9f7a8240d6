// x[r, :] = SCALE * table[tokens[r], :]
//
// current  Step
// tokens   u32 [rows]
// weight0  the table's rows FIRST to FIRST + OUTPUTS - 1, see formats.py
// x        {{ VALUE }} [rows, K]
//
// A thread dequantizes one unit of 32 weights. A token outside the part writes nothing.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override WG: u32;
override K: u32;
override UNITS: u32;             // of 32 weights
override OUTPUTS: u32;
override FIRST: u32;
override SCALE: f32;

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let unit = id.x;
    let row = id.y;
    if (row >= current.rows || unit >= UNITS) {
        return;
    }
    let token = tokens[row];
    if (token < FIRST || token - FIRST >= OUTPUTS) {
        return;
    }
    let w = weights0(token - FIRST, unit);
{% for i in range(8) %}
    let k{{ i }} = 32u * unit + {{ 4 * i }}u;
    if (k{{ i }} < K) {
        x[(row * K + k{{ i }}) / 4u] = value4(SCALE * w[{{ i }}]);
    }
{% endfor %}
}
