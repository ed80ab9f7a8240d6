{% if MODE == "each" %}
// y[r, s, n] = sum_k x[r, k] W[e, n, k] (+ y), e the s-th expert of row r.
{% else %}
// y[r, n] = sum_s share sum_k x[r, s, k] W[e, n, k] (+ y), e and share the s-th route of row r.
{% endif %}
//
// current  Step
// routes   Route [rows, TOP_K]
// x        {{ VALUE }} {{ "[rows, K]" if MODE == "each" else "[rows, TOP_K, K]" }}
// weight   [INPUTS, ROW_WORDS] words of type {{ WEIGHT }}: rows FIRST.. of [EXPERTS, K], of N outputs each
// y        {{ VALUE }} {{ "[rows, TOP_K, N]" if MODE == "each" else "[rows, N]" }}
//
// A workgroup computes UNITS_PER_GROUP units of 32 outputs of {{ "a route" if MODE == "each" else "a row, over its routes" }}. A thread owns one
// unit and every SPLITS-th k of this part; the partial sums meet in workgroup memory. Accumulates
// in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/route.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> routes: array<Route>;
@group(0) @binding(2) var<storage, read> x: array<{{ VALUE }}>;
@group(0) @binding(3) var<storage, read> weight: array<Word>;
@group(0) @binding(4) var<storage, read_write> y: array<{{ VALUE }}>;

override UNITS_PER_GROUP: u32;
override SPLITS: u32;            // a power of two
override K: u32;
override N: u32;
override UNITS: u32;             // units of 32 outputs in a stored row
override ROW_WORDS: u32;
override INPUTS: u32;            // stored rows of this part
override FIRST: u32;             // of all stored rows, the first of them
override EXPERTS: u32;
override TOP_K: u32;
override ACCUMULATE: bool = false;

override WG = UNITS_PER_GROUP * SPLITS;

var<workgroup> partial: array<vec4<f32>, 8u * WG>;  // [8, SPLITS, UNITS_PER_GROUP]

{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let unit0 = (wid.x + wid.y * groups.x) * UNITS_PER_GROUP;
{% if MODE == "each" %}
    let row = wid.z / TOP_K;
    let first_route = wid.z;
    let end_route = wid.z + 1u;
{% else %}
    let row = wid.z;
    let first_route = wid.z * TOP_K;
    let end_route = first_route + TOP_K;
{% endif %}
    if (unit0 >= UNITS || row >= current.rows) {
        return;
    }
    let unit = min(unit0 + thread % UNITS_PER_GROUP, UNITS - 1u);
    let split = thread / UNITS_PER_GROUP;
{% for i in range(8) %}
    var acc{{ i }} = vec4<f32>(0.0);
{% endfor %}
    for (var route = first_route; route < end_route; route++) {
        let base = min(routes[route].expert, EXPERTS - 1u) * K;
        let low = max(base, FIRST);
        let high = min(base + K, FIRST + INPUTS);
        // Unrolled by the template: indices that are no constants keep arrays out of registers.
        for (var k = low + split; k < high; k += SPLITS) {
            let w = load_unit((k - FIRST) * ROW_WORDS, unit);
{% if MODE == "each" %}
            let v = f32(x[row * K + k - base]);
{% else %}
            let v = routes[route].share * f32(x[route * K + k - base]);
{% endif %}
{% for i in range(8) %}
            acc{{ i }} += v * w[{{ i }}];
{% endfor %}
        }
    }
{% for i in range(8) %}
    partial[{{ i }}u * WG + thread] = acc{{ i }};
{% endfor %}
    for (var half = SPLITS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (split < half) {
{% for i in range(8) %}
            partial[{{ i }}u * WG + thread] += partial[{{ i }}u * WG + thread + half * UNITS_PER_GROUP];
{% endfor %}
        }
    }
    workgroupBarrier();
    for (var at = thread; at < 32u * UNITS_PER_GROUP; at += WG) {
        store(wid.z, unit0 + at / 32u, at % 32u, at / 32u);
    }
}

// Write lane `lane` of the `slot`-th unit of the workgroup, for a route or a row.
fn store(target_row: u32, unit: u32, lane: u32, slot: u32) {
    let n = unit_element(unit, lane / 4u) + lane % 4u;
    if (unit >= UNITS || n >= N) {
        return;
    }
    let at = target_row * N + n;
    var result = partial[(lane / 4u) * WG + slot][lane % 4u];
    if (ACCUMULATE) {
        result += f32(y[at]);
    }
    y[at] = value(result);
}
