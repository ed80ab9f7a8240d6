// y = x W^T (+ bias) (+ y) for many token rows, weights stored by {{ LAYOUT }}.
//
// current  Step
// x        f32 [rows, K], K inputs of all parts
// weight   words of type {{ WEIGHT }}: [OUTPUTS, ROW_WORDS] by row, [INPUTS, ROW_WORDS] by column
// y        f32 [rows, N], N outputs of all parts
// bias     f32 [N], only with BIAS
//
// A workgroup of 128 threads computes {{ 8 * MICRO }} rows by 64 outputs in steps of 32 inputs. Half of the
// threads dequantize the weights of the step into workgroup memory, each weight once; the other
// half stage x. Then a thread multiplies {{ MICRO }} rows by 4 outputs. Accumulates in f32.
// Inputs (by row) or outputs (by column) are taken in the order in which units hold them.
{% include "snippets/step.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<Word>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
{% if BIAS %}
@group(0) @binding(4) var<storage, read> bias: array<f32>;
{% endif %}

override K: u32;
override N: u32;
override UNITS: u32;             // units of 32 weights in a stored row
override ROW_WORDS: u32;
override PART: u32;              // stored rows of this part
override FIRST: u32;             // output (by row) or input (by column) of the first of them
override ACCUMULATE: bool = false;
override SINGLE_ROW: bool = false;

const TILE_M = {{ 8 * MICRO }}u;

var<workgroup> tile_w: array<vec4<f32>, 512>;           // [32 inputs, 64 outputs / 4]
var<workgroup> tile_x: array<vec4<f32>, {{ 64 * MICRO }}>;   // [32 inputs, TILE_M / 4]

{% include "snippets/weight_" ~ WEIGHT ~ ".wgsl" %}
{% include "snippets/stage_" ~ LAYOUT ~ ".wgsl" %}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let rows = select(current.rows, 1u, SINGLE_ROW);
    let m0 = wid.y * TILE_M;
    if (m0 >= rows) {
        return;
    }
    let tn = thread % 16u;
    let tm = thread / 16u;
{% for m in range(MICRO) %}
    var acc{{ m }} = vec4<f32>(0.0);
{% endfor %}
    // Unrolled by the template: naga bounds every loop, and indices that are no constants keep
    // arrays out of registers.
    for (var s = 0u; s < steps(); s++) {
        if (thread < 64u) {
            stage_weights(wid.x, s, thread);
        } else {
            for (var m = thread - 64u; m < TILE_M; m += 64u) {
                stage_x(s, m, min(m0 + m, rows - 1u));
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k += 4u) {
{% for k in range(4) %}
            let w{{ k }} = tile_w[(k + {{ k }}u) * 16u + tn];
{% for v in range(MICRO // 4) %}
            let x{{ k }}_{{ v }} = tile_x[((k + {{ k }}u) * 8u + tm) * {{ MICRO // 4 }}u + {{ v }}u];
{% for c in range(4) %}
            acc{{ 4 * v + c }} += x{{ k }}_{{ v }}[{{ c }}] * w{{ k }};
{% endfor %}
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();
    }
{% for m in range(MICRO) %}
    store4(m0 + tm * {{ MICRO }}u + {{ m }}u, rows, wid.x, tn * 4u, acc{{ m }});
{% endfor %}
}

fn store4(row: u32, rows: u32, tile: u32, j: u32, sums: vec4<f32>) {
    if (row >= rows) {
        return;
    }
    for (var c = 0u; c < 4u; c++) {
        let n = output_index(tile, j + c);
        if (n < N) {
            store(row, n, sums[c]);
        }
    }
}

fn store(row: u32, n: u32, sum: f32) {
    var value = sum;
{% if BIAS %}
    value += bias[n];
{% endif %}
    if (ACCUMULATE) {
        value += y[row * N + n];
    }
    y[row * N + n] = value;
}
