{% if MODE == "each" %}
// y[r, s, n] = sum_k x[r, k] W[e, n, k], e the s-th expert of row r.
{% else %}
// y[r, n] = sum_s share sum_k x[r, s, k] W[e, n, k] (+ y), e and share the s-th route of row r.
{% endif %}
//
// current  Step
// routes   Route [rows, TOP_K]
// x        {{ VALUE }} {{ "[rows, K]" if MODE == "each" else "[rows, TOP_K, K]" }}
// weight0  this part's rows FIRST to FIRST + OUTPUTS - 1 of EXPERT_ROWS of each of EXPERTS, one of FORMATS
// y        {{ VALUE }} {{ "[rows, TOP_K, N]" if MODE == "each" else "[rows, N]" }}
//
// A workgroup computes 4 outputs of {{ "a route" if MODE == "each" else "a row, over its routes" }}; its threads share the units of K. An output
// whose weights are in another part {{ "is left alone" if MODE == "each" else "counts for nothing" }}. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/route.wgsl" %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> routes: array<Route>;
@group(0) @binding(2) var<storage, read> x: array<vec4<{{ VALUE }}>>;
@group(0) @binding(3) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<{{ VALUE }}>;

override WG: u32;
override K: u32;
override N: u32;
override UNITS: u32;             // units of 32 weights in a row
override K_PADDED: bool;         // some units reach beyond K
override OUTPUTS: u32;           // rows of this part
override FIRST: u32;             // of all rows, the first of them
override EXPERTS: u32;
override EXPERT_ROWS: u32;       // rows from one expert to the next
override TOP_K: u32;
{% if MODE == "sum" %}
override ACCUMULATE: bool = false;
{% endif %}

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

// This thread's share of 4 products of the vector at word x0 with the part's rows from `first` on.
fn products(x0: u32, first: vec4<u32>, thread: u32) -> vec4<f32> {
    var acc = vec4<f32>(0.0);
    // Unrolled by the template: naga bounds every loop, and indices that are no constants keep
    // arrays out of registers.
    for (var unit = thread; unit < UNITS; unit += WG) {
{% for o in range(4) %}
        let w{{ o }} = weights0(first[{{ o }}], unit);
{% endfor %}
{% for i in range(8) %}
        let k{{ i }} = 32u * unit + {{ 4 * i }}u;
        if (!K_PADDED || k{{ i }} < K) {
            let v{{ i }} = vec4<f32>(x[x0 + k{{ i }} / 4u]);
            acc += vec4<f32>({% for o in range(4) %}dot(w{{ o }}[{{ i }}], v{{ i }}){{ ", " if o < 3 }}{% endfor %});
        }
{% endfor %}
    }
    return acc;
}

// Which of the outputs n0..n0+3 of an expert lie in this part.
fn inside(expert: u32, n0: u32) -> vec4<bool> {
    let n = vec4<u32>(n0) + vec4<u32>(0u, 1u, 2u, 3u);
    let row = vec4<u32>(expert * EXPERT_ROWS) + n;
    return (n < vec4<u32>(N)) & (row >= vec4<u32>(FIRST)) & (row < vec4<u32>(FIRST + OUTPUTS));
}

// Their rows in the part, or any of its rows for those outside.
fn rows_of(expert: u32, n0: u32) -> vec4<u32> {
    let row = vec4<u32>(expert * EXPERT_ROWS + n0) + vec4<u32>(0u, 1u, 2u, 3u);
    return clamp(row, vec4<u32>(FIRST), vec4<u32>(FIRST + OUTPUTS - 1u)) - vec4<u32>(FIRST);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let n0 = (wid.x + wid.y * groups.x) * 4u;
    let t = thread.index;
{% if MODE == "each" %}
    let row = wid.z / TOP_K;
    if (n0 >= N || row >= current.rows) {
        return;
    }
    let expert = min(routes[wid.z].expert, EXPERTS - 1u);
    let live = inside(expert, n0);
    if (!any(live)) {
        return;
    }
    let mine = products(row * (K / 4u), rows_of(expert, n0), t);
    let total = reduce_sum(mine, thread);
    if (t < 4u && live[t]) {
        y[wid.z * N + n0 + t] = value(total[t]);
    }
{% else %}
    let row = wid.z;
    if (n0 >= N || row >= current.rows) {
        return;
    }
    var acc = vec4<f32>(0.0);
    for (var route = row * TOP_K; route < (row + 1u) * TOP_K; route++) {
        let expert = min(routes[route].expert, EXPERTS - 1u);
        let live = inside(expert, n0);
        if (any(live)) {
            let mine = products(route * (K / 4u), rows_of(expert, n0), t);
            acc += routes[route].share * select(vec4<f32>(0.0), mine, live);
        }
    }
    let total = reduce_sum(acc, thread);
    if (t < 4u && n0 + t < N) {
        let at = row * N + n0 + t;
        y[at] = value(select(total[t], total[t] + f32(y[at]), ACCUMULATE));
    }
{% endif %}
}
