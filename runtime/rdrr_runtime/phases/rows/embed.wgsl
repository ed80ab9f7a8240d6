// x[r, :] = SCALE * table[t, :], where t is the token of row r, or 0 if it is beyond the table
//
// current  Step
// weight0  rows FIRST to FIRST + OUTPUTS - 1 of the table, layout as in formats.py
// x        {{ VALUE }} [rows, K]
{% if CLEARS %}
// cleared  words for a later phase of a pass of one row, set to zero
{% endif %}
//
// An item is WG half units (32 weights each) of a row; each thread dequantizes one of them. Nothing is
// written for a token outside this part of the table.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}

var<storage, read> current: Step;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;
{% if CLEARS %}
var<storage, read_write> cleared: array<u32>;

override CLEARED_WORDS: u32;
{% endif %}

override K: u32;
override UNITS: u32;             // half units (32 weights) of a row
override OUTPUTS: u32;           // rows of this part
override FIRST: u32;             // index of the first of them in the table
override ROWS: u32;              // rows of the whole table
override SCALE: f32;

{% set DEQUANTIZED = true %}
{% include "weights/snippets/weights.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let unit = item * WG + thread.index;
{% if CLEARS %}
    for (var i = unit; i < CLEARED_WORDS; i += (UNITS + WG - 1u) / WG * WG) {
        cleared[i] = 0u;
    }
{% endif %}
    let stated = current.row[row].token;
    let token = select(0u, stated, stated < ROWS);
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
