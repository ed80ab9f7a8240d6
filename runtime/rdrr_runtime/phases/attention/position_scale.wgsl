// x = x * (1 + SCALE ln(1 + floor((p + OFFSET) / LENGTH))) in place, for the position p of the row.
//
// current  Step
// x        {{ VALUE }} [rows, WIDTH]
//
// An item is WG elements of a row, one for each thread. Computes in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read_write> x: array<{{ VALUE }}>;

override WIDTH: u32;
override SCALE: f32;
override LENGTH: u32;
override OFFSET: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i >= WIDTH) {
        return;
    }
    let steps = (current.row[row].position + OFFSET) / LENGTH;
    let at = row * WIDTH + i;
    x[at] = value(f32(x[at]) * (1.0 + SCALE * log(f32(1u + steps))));
}
