// y[r, FIRST + n] = sum_k x[r, k] W[n, k] (+ bias) (+ y).
//
// current  Step
// x        {{ VALUE }} [rows, K]
// weight0  OUTPUTS rows of one of FORMATS, see formats.py
// y        {{ Y }} [rows, STRIDE]
// bias     f32 [STRIDE], only with BIAS
//
// A workgroup computes 4 outputs for {{ ROWS }} token rows; its threads share the units of K, so each
// weight is read and dequantized once for those rows. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<{{ VALUE }}>>;
@group(0) @binding(2) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<{{ Y }}>;
{% if BIAS %}
@group(0) @binding(4) var<storage, read> bias: array<f32>;
{% endif %}

override WG: u32;
override K: u32;
override UNITS: u32;             // units of 32 weights in a row
override K_PADDED: bool;         // some units reach beyond K
override OUTPUTS: u32;           // rows of this part
override FIRST: u32;             // output of the first of them
override STRIDE: u32;            // outputs of all parts
override ACCUMULATE: bool = false;
override SINGLE_ROW: bool = false;

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let rows = select(current.rows, 1u, SINGLE_ROW);
    let n0 = (wid.x + wid.y * groups.x) * 4u;
    let r0 = wid.z * {{ ROWS }}u;
    if (n0 >= OUTPUTS || r0 >= rows) {
        return;
    }
{% for r in range(ROWS) %}
    var acc{{ r }} = vec4<f32>(0.0);
    let x{{ r }} = min(r0 + {{ r }}u, rows - 1u) * (K / 4u);
{% endfor %}
    // Unrolled by the template: naga bounds every loop, and indices that are no constants keep
    // arrays out of registers.
    for (var unit = thread.index; unit < UNITS; unit += WG) {
{% for o in range(4) %}
        let w{{ o }} = weights0(min(n0 + {{ o }}u, OUTPUTS - 1u), unit);
{% endfor %}
{% for i in range(8) %}
        let k{{ i }} = 32u * unit + {{ 4 * i }}u;
        if (!K_PADDED || k{{ i }} < K) {
{% for r in range(ROWS) %}
            let v{{ r }} = vec4<f32>(x[x{{ r }} + k{{ i }} / 4u]);
            acc{{ r }} += vec4<f32>({% for o in range(4) %}dot(w{{ o }}[{{ i }}], v{{ r }}){{ ", " if o < 3 }}{% endfor %});
{% endfor %}
        }
{% endfor %}
    }
{% for r in range(ROWS) %}
    finish(reduce_sum(acc{{ r }}, thread), r0 + {{ r }}u, rows, n0 + thread.index, thread.index);
{% endfor %}
}

// Write output n of a row; n is the lane-th of the workgroup.
fn finish(total: vec4<f32>, row: u32, rows: u32, n: u32, lane: u32) {
    if (lane >= 4u || n >= OUTPUTS || row >= rows) {
        return;
    }
    var result = total[lane];
{% if BIAS %}
    result += bias[FIRST + n];
{% endif %}
    let at = row * STRIDE + FIRST + n;
    if (ACCUMULATE) {
        result += f32(y[at]);
    }
    y[at] = {{ "value(result)" if Y == VALUE else "result" }};
}
