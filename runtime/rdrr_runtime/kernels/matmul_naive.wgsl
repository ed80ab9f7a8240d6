// y[r, n] = sum_k x[r, k] W[n, k], one output a thread and nothing shared.
//
// current  Step
// x        f32 [rows, K]
// weight   f32 [N, ROW_WORDS]
// y        f32 [rows, N]
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

override K: u32;
override N: u32;
override ROW_WORDS: u32;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= N || id.y >= current.rows) {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < K; k++) {
        sum += x[id.y * K + k] * weight[id.x * ROW_WORDS + k];
    }
    y[id.y * N + id.x] = sum;
}
