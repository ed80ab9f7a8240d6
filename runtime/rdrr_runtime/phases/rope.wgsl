// Rotary position embedding in place, rotate-half convention: for i < PAIRS,
// (x[i], x[i + PAIRS]) = (x[i] cos - x[i + PAIRS] sin, x[i + PAIRS] cos + x[i] sin),
// with (cos, sin) = table[p, i] for the position p of the row. Elements from 2 PAIRS on are unchanged.
//
// current  Step
// table    f32 [context, PAIRS, 2]: cos, sin
// x        {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is WG pairs of a row; each thread rotates one.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "snippets/rotated.wgsl" %}
var<storage, read> current: Step;
var<storage, read> table: array<vec2<f32>>;
var<storage, read_write> x: array<{{ VALUE }}>;

override HEADS: u32;
override HEAD_DIM: u32;
override PAIRS: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let index = item * WG + thread.index;
    if (index >= HEADS * PAIRS) {
        return;
    }
    let pair = index % PAIRS;
    let first = (row * HEADS + index / PAIRS) * HEAD_DIM + pair;
    let angle = table[current.row[row].position * PAIRS + pair];
    let result = rotated(f32(x[first]), f32(x[first + PAIRS]), angle);
    x[first] = value(result.x);
    x[first + PAIRS] = value(result.y);
}
