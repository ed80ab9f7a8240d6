// x[r, :] = SCALE * table[t, :], t the token of row r
//
// current  Step
// weight0  the table's rows FIRST to FIRST + OUTPUTS - 1, see formats.py
// x        {{ VALUE }} [rows, K]
//
// An item is WG units of 32 weights of one row; a thread dequantizes one of them. A token outside the
// part writes nothing.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}

var<storage, read> current: Step;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override K: u32;
override UNITS: u32;             // of 32 weights
override OUTPUTS: u32;
override FIRST: u32;
override SCALE: f32;

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let unit = item * WG + thread.index;
    let token = current.row[row].token;
    if (unit >= UNITS || token < FIRST || token - FIRST >= OUTPUTS) {
        return;
    }
    let w = weights0(token - FIRST, unit);
{% for i in range(8) %}
    let k{{ i }} = 32u * unit + {{ 4 * i }}u;
    if (k{{ i }} < K) {
        x[(row * K + k{{ i }}) / 4u] = value4(SCALE * w[{{ i }}]);
    }
{% endfor %}
}
