// Rotary position embedding in place: each pair (a, b) of a head's elements (snippets/rotated.wgsl)
// becomes (a cos - b sin, b cos + a sin), with (cos, sin) = table[p, i] for the position p of the row
// and the number i of the pair. Elements from 2 PAIRS on are unchanged.
//
// current  Step
// table    f32 [context, PAIRS, 2]: cos, sin
// x        {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is WG pairs of a row; each thread rotates one.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
{% include "attention/snippets/rotated.wgsl" %}
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
    let first = (row * HEADS + index / PAIRS) * HEAD_DIM + first_of_pair(pair);
    let second = partner(first);
    let angle = table[current.row[row].position * PAIRS + pair];
    let result = rotated(f32(x[first]), f32(x[second]), angle);
    x[first] = value(result.x);
    x[second] = value(result.y);
}
