// y[r, n] = sum_k x[r, FIRST + k] W[n, FIRST + k] (+ bias) (+ y), stored by columns: rows of N.
//
// current  Step
// x        {{ VALUE }} [rows, STRIDE]
// weight   [INPUTS, ROW_WORDS] words of type {{ WEIGHT }}
// y        {{ Y }} [rows, N]
// bias     f32 [N], only with BIAS
//
// A workgroup computes UNITS_PER_GROUP units of 32 outputs for {{ ROWS }} token rows. A thread owns one
// unit and every SPLITS-th k; the partial sums meet in workgroup memory. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<{{ VALUE }}>;
@group(0) @binding(2) var<storage, read> weight: array<Word>;
@group(0) @binding(3) var<storage, read_write> y: array<{{ Y }}>;
{% if BIAS %}
@group(0) @binding(4) var<storage, read> bias: array<f32>;
{% endif %}

override UNITS_PER_GROUP: u32;
override SPLITS: u32;            // a power of two
override N: u32;
override UNITS: u32;             // units of 32 outputs in a stored row
override ROW_WORDS: u32;
override INPUTS: u32;            // stored rows of this part
override FIRST: u32;             // input of the first of them
override STRIDE: u32;            // inputs of all parts
override ACCUMULATE: bool = false;
override SINGLE_ROW: bool = false;

override WG = UNITS_PER_GROUP * SPLITS;

var<workgroup> partial: array<vec4<f32>, 8u * WG>;  // [8, SPLITS, UNITS_PER_GROUP]

{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let rows = select(current.rows, 1u, SINGLE_ROW);
    let unit0 = (wid.x + wid.y * groups.x) * UNITS_PER_GROUP;
    let r0 = wid.z * {{ ROWS }}u;
    if (unit0 >= UNITS || r0 >= rows) {
        return;
    }
    let unit = unit0 + thread % UNITS_PER_GROUP;
    let split = thread / UNITS_PER_GROUP;
{% for r in range(ROWS) %}
{% for i in range(8) %}
    var acc{{ r }}_{{ i }} = vec4<f32>(0.0);
{% endfor %}
    let x{{ r }} = min(r0 + {{ r }}u, rows - 1u) * STRIDE + FIRST;
{% endfor %}
    // Unrolled by the template: naga bounds every loop, and indices that are no constants keep
    // arrays out of registers.
{% set AHEAD = 4 // ROWS %}
    // Loads of {{ AHEAD }} k in flight, as registers allow.
    for (var k = split; k < INPUTS; k += {{ AHEAD }}u * SPLITS) {
{% for u in range(AHEAD) %}
        let k{{ u }} = min(k + {{ u }}u * SPLITS, INPUTS - 1u);
        let live{{ u }} = k + {{ u }}u * SPLITS < INPUTS;
        let w{{ u }} = load_unit(k{{ u }} * ROW_WORDS, min(unit, UNITS - 1u));
{% endfor %}
{% for u in range(AHEAD) %}
{% for r in range(ROWS) %}
        let v{{ u }}_{{ r }} = select(0.0, f32(x[x{{ r }} + k{{ u }}]), live{{ u }});
{% for i in range(8) %}
        acc{{ r }}_{{ i }} += v{{ u }}_{{ r }} * w{{ u }}[{{ i }}];
{% endfor %}
{% endfor %}
{% endfor %}
    }
{% for r in range(ROWS) %}
{% for i in range(8) %}
    partial[{{ i }}u * WG + thread] = acc{{ r }}_{{ i }};
{% endfor %}
    join(thread, split);
    if (r0 + {{ r }}u < rows) {
        for (var at = thread; at < 32u * UNITS_PER_GROUP; at += WG) {
            store(r0 + {{ r }}u, unit0 + at / 32u, at % 32u, at / 32u);
        }
    }
    workgroupBarrier();  // the sums have been read
{% endfor %}
}

// Sum `partial` over the splits, into the first of them.
fn join(thread: u32, split: u32) {
    for (var half = SPLITS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (split < half) {
{% for i in range(8) %}
            partial[{{ i }}u * WG + thread] += partial[{{ i }}u * WG + thread + half * UNITS_PER_GROUP];
{% endfor %}
        }
    }
    workgroupBarrier();
}

// Write lane `lane` of the `slot`-th unit of the workgroup.
fn store(row: u32, unit: u32, lane: u32, slot: u32) {
    let n = unit_element(unit, lane / 4u) + lane % 4u;
    if (unit >= UNITS || n >= N) {
        return;
    }
    var result = partial[(lane / 4u) * WG + slot][lane % 4u];
{% if BIAS %}
    result += bias[n];
{% endif %}
    if (ACCUMULATE) {
        result += f32(y[row * N + n]);
    }
    y[row * N + n] = {{ "value(result)" if Y == VALUE else "result" }};
}
