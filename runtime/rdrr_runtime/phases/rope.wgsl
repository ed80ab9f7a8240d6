// Rotary position embedding in place, rotate-half: for i < PAIRS and position p of the row,
// (x[i], x[i + PAIRS]) = (x[i] cos - x[i + PAIRS] sin, x[i + PAIRS] cos + x[i] sin).
// Elements from 2 PAIRS on stay as they are.
//
// current    Step
// positions  u32 [rows]
// table      f32 [context, PAIRS, 2]: cos, sin
// x          {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// A thread rotates one pair.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> x: array<{{ VALUE }}>;

override HEADS: u32;
override HEAD_DIM: u32;
override PAIRS: u32;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    if (row >= current.rows || id.x >= HEADS * PAIRS) {
        return;
    }
    let pair = id.x % PAIRS;
    let first = (row * HEADS + id.x / PAIRS) * HEAD_DIM + pair;
    let angle = table[positions[row] * PAIRS + pair];
    let a = f32(x[first]);
    let b = f32(x[first + PAIRS]);
    x[first] = value(a * angle.x - b * angle.y);
    x[first + PAIRS] = value(b * angle.x + a * angle.y);
}
