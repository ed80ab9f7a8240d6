// y[r, n] = sum_k x[r, k] W[n, k], one output per thread and nothing shared.
//
// current  Step
// x        f32 [rows, K]
// weight   {{ WEIGHT }} row-major [N, ROW], or column-major [K, ROW]; f16 two to a word
// y        f32 [rows, N]
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<{{ "u32" if WEIGHT == "f16" else "f32" }}>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

override K: u32;
override N: u32;
override ROW: u32;         // weights of a stored row, padding included
override COLUMN: bool;
override WIDE: u32;        // threads of a workgroup along the outputs
override HIGH: u32;        // and along the token rows

fn weight_at(index: u32) -> f32 {
{% if WEIGHT == "f16" %}
    return unpack2x16float(weight[index / 2u])[index % 2u];
{% else %}
    return weight[index];
{% endif %}
}

@compute @workgroup_size(WIDE, HIGH)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= N || id.y >= current.rows) {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < K; k++) {
        sum += x[id.y * K + k] * weight_at(select(id.x * ROW + k, k * ROW + id.x, COLUMN));
    }
    y[id.y * N + id.x] = sum;
}
