// y[r, FIRST + n] = sum_k x[r, k] W[n, k] (+ bias) (+ y), weights stored by rows of K.
//
// current  Step
// x        f32 [rows, K]
// weight   [OUTPUTS, ROW_WORDS] words of type {{ WEIGHT }}
// y        f32 [rows, STRIDE]
// bias     f32 [STRIDE], only with BIAS
//
// A workgroup computes 4 outputs for {{ ROWS }} token rows; its threads share the units of K, so each
// weight is read and dequantized once for those rows. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/thread.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<Word>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
{% if BIAS %}
@group(0) @binding(4) var<storage, read> bias: array<f32>;
{% endif %}

override WG: u32;
override K: u32;
override UNITS: u32;             // units of 32 weights in a row
override K_PADDED: bool;         // some units reach beyond K
override ROW_WORDS: u32;
override OUTPUTS: u32;           // stored rows of this part
override FIRST: u32;             // output of the first of them
override STRIDE: u32;            // outputs of all parts
override ACCUMULATE: bool = false;
override SINGLE_ROW: bool = false;

const ROWS = {{ ROWS }}u;

{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let rows = select(current.rows, 1u, SINGLE_ROW);
    let n0 = (wid.x + wid.y * groups.x) * 4u;
    let r0 = wid.z * ROWS;
    if (n0 >= OUTPUTS || r0 >= rows) {
        return;
    }
    var acc: array<vec4<f32>, ROWS>;
    for (var unit = thread.index; unit < UNITS; unit += WG) {
        for (var o = 0u; o < 4u; o++) {
            let w = load_unit(min(n0 + o, OUTPUTS - 1u) * ROW_WORDS, unit);
            for (var i = 0u; i < 8u; i++) {
                let k = unit_element(unit, i);
                if (K_PADDED && k >= K) {
                    continue;
                }
                for (var r = 0u; r < ROWS; r++) {
                    acc[r][o] += dot(w[i], x[(min(r0 + r, rows - 1u) * K + k) / 4u]);
                }
            }
        }
    }
    for (var r = 0u; r < ROWS; r++) {
        let total = reduce_sum(acc[r], thread);
        let n = n0 + thread.index;
        if (thread.index < 4u && n < OUTPUTS && r0 + r < rows) {
            var value = total[thread.index];
{% if BIAS %}
            value += bias[FIRST + n];
{% endif %}
            let at = (r0 + r) * STRIDE + FIRST + n;
            if (ACCUMULATE) {
                value += y[at];
            }
            y[at] = value;
        }
    }
}
