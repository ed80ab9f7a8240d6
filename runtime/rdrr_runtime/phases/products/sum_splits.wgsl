// Add the sums of the splits of a product: y = (sum of all splits) (+ bias) (+ y).
//
// current  Step
// sums     f32 [SPLITS, ROWS, N]
// y        f32 [rows, N]
// bias     f32 [N], only with BIAS
//
// An item is WG times 4 elements of a row, 4 for each thread. Rows beyond those of the step are left unchanged.
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, read> sums: array<vec4<f32>>;
var<storage, read_write> y: array<vec4<f32>>;
{% if BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}

override N: u32;
override ROWS: u32;
override ACCUMULATE: bool;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i >= N / 4u || row >= current.rows) {
        return;
    }
    let at = row * (N / 4u) + i;
{% for split in range(SPLITS) %}
    let s{{ split }} = sums[{{ split }}u * ROWS * (N / 4u) + at];
{% endfor %}
    var summand = {{ "bias[i]" if BIAS else "vec4<f32>(0.0)" }};
    if (ACCUMULATE) {
        summand += y[at];
    }
    y[at] = {% for split in range(SPLITS) %}s{{ split }} + {% endfor %}summand;
}
