// x[r, :] = x[r, :] + table[OFFSET + p, :], where p is the {{ "type" if BY_TYPE else "position" }} of row r
//
// current  Step
// weight0  rows FIRST to FIRST + OUTPUTS - 1 of the table, layout as in formats.py
// x        {{ VALUE }} [rows, K]
//
// An item is WG half units (32 weights each) of a row; each thread dequantizes one of them. Nothing is
// added for a row of the table outside this part of it.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}

{% if BY_TYPE %}
{% include "snippets/segment.wgsl" %}

{% endif %}
var<storage, read> current: Step;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override K: u32;
override UNITS: u32;             // half units (32 weights) of a row
override OUTPUTS: u32;           // rows of this part
override FIRST: u32;             // index of the first of them in the table
override OFFSET: u32;            // row of position 0

{% set DEQUANTIZED = true %}
{% include "weights/snippets/weights.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let unit = item * WG + thread.index;
    let at = {{ "segments[current.row[row].slot].kind" if BY_TYPE else "current.row[row].position" }} + OFFSET;
    if (unit >= UNITS || at < FIRST || at - FIRST >= OUTPUTS) {
        return;
    }
    let w = weights0(at - FIRST, unit);
{% for i in range(8) %}
    let k{{ i }} = 32u * unit + {{ 4 * i }}u;
    if (k{{ i }} < K) {
        let i{{ i }} = (row * K + k{{ i }}) / 4u;
        x[i{{ i }}] = value4(vec4<f32>(x[i{{ i }}]) + w[{{ i }}]);
    }
{% endfor %}
}
