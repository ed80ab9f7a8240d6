// y[r, n] = sum_s share inner[r, s, n] (+ y), share that of the s-th route of row r.
//
// current  Step
// routes   Route [rows, TOP_K]
// inner    {{ VALUE }} [rows, TOP_K, N]
// y        {{ VALUE }} [rows, N]
//
// A thread computes 4 outputs. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/route.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> routes: array<Route>;
@group(0) @binding(2) var<storage, read> inner: array<vec4<{{ VALUE }}>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override N: u32;
override TOP_K: u32;
override ACCUMULATE: bool = false;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let words = N / 4u;
    let row = id.y;
    if (row >= current.rows || id.x >= words) {
        return;
    }
    var sum = vec4<f32>(0.0);
    for (var route = row * TOP_K; route < (row + 1u) * TOP_K; route++) {
        sum += routes[route].share * vec4<f32>(inner[route * words + id.x]);
    }
    let at = row * words + id.x;
    if (ACCUMULATE) {
        sum += vec4<f32>(y[at]);
    }
    y[at] = value4(sum);
}
