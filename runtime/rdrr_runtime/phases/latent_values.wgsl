// out[r, h, :] = V_h latents[r, h, :], where the matrix V_h is the last VALUE_DIM of the KEY_DIM + VALUE_DIM rows of
// head h.
//
// current  Step
// latents  {{ VALUE }} [rows, HEADS, LATENT]
// weight0  [HEADS (KEY_DIM + VALUE_DIM), LATENT], layout as in formats.py
// out      {{ VALUE }} [rows, HEADS, VALUE_DIM]
//
// An item is WG / UNITS outputs of a head of {{ ROWS ~ " rows" if ROWS > 1 else "a row" }}; UNITS threads share an output. Accumulates in
// f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> latents: array<vec4<{{ VALUE }}>>;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> out: array<{{ VALUE }}>;

override HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override LATENT: u32;
override UNITS: u32;  // half units (32 weights) of a row

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

var<workgroup> parts: array<vec4<f32>, WG>;  // a number of each row

fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let each = WG / UNITS;  // outputs of an item
    let items = (VALUE_DIM + each - 1u) / each;
    let head = item / items;
    let output = (item % items) * each + t / UNITS;
    let unit = t % UNITS;
    let is_live = t / UNITS < each && output < VALUE_DIM;
    var acc = vec4<f32>(0.0);
    if (is_live) {
        let w = weights0(head * (KEY_DIM + VALUE_DIM) + KEY_DIM + output, unit);
{% for r in range(ROWS) %}
        let at{{ r }} = (min(row + {{ r }}u, current.rows - 1u) * HEADS + head) * (LATENT / 4u);
{% endfor %}
{% for i in range(8) %}
        if (32u * unit + {{ 4 * i }}u < LATENT) {
{% for r in range(ROWS) %}
            acc[{{ r }}] += dot(w[{{ i }}], vec4<f32>(latents[at{{ r }} + 8u * unit + {{ i }}u]));
{% endfor %}
        }
{% endfor %}
    }
    parts[t] = acc;
    workgroupBarrier();
    if (is_live && unit == 0u) {
        var sum = vec4<f32>(0.0);
        for (var i = 0u; i < UNITS; i++) {
            sum += parts[t + i];
        }
{% for r in range(ROWS) %}
        if (row + {{ r }}u < current.rows) {
            out[((row + {{ r }}u) * HEADS + head) * VALUE_DIM + output] = value(sum[{{ r }}]);
        }
{% endfor %}
    }
}
