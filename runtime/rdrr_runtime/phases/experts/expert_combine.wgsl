// y[r, n] = sum_s w[r, s] (inner[r, s, n] (+ bias[e, n])) (+ y), where w[r, s] is {{ "1" if SCALED else "the weight of the s-th
// route of row r" }} and e {{ "the s-th expert of row r" if SCALED else "its expert" }}
//
// routes   Route [rows, TOP_K]
// inner    {{ VALUE }} [rows, TOP_K, N]
// bias     f32 [experts, N], only with BIAS
// y        {{ VALUE }} [rows, N]
//
// An item is 4 WG elements of a row, 4 for each thread. Accumulates in f32.
{% include "snippets/value.wgsl" %}
{% include "snippets/route.wgsl" %}
var<storage, read> routes: array<Route>;
var<storage, read> inner: array<vec4<{{ VALUE }}>>;
{% if BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override N: u32;
override TOP_K: u32;
override ACCUMULATE: bool;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = N / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
    var sum = vec4<f32>(0.0);
    for (var route = row * TOP_K; route < (row + 1u) * TOP_K; route++) {
        let own = vec4<f32>(inner[route * words + i]){{ " + bias[routes[route].expert * words + i]" if BIAS }};
        sum += {{ "" if SCALED else "routes[route].weight * " }}own;
    }
    let at = row * words + i;
    if (ACCUMULATE) {
        sum += vec4<f32>(y[at]);
    }
    y[at] = value4(sum);
}
