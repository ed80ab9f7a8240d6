// y[r, :] = x[rows - n + r, :], the last n rows of a pass: n = current.last_n with SEVERAL, else n = 1.
//
// current  Step
// x        {{ VALUE }} [rows, WIDTH]
// y        {{ VALUE }} [n, WIDTH]
//
// An item is WG elements of a row of y, one for each thread.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> x: array<{{ VALUE }}>;
var<storage, read_write> y: array<{{ VALUE }}>;

override WIDTH: u32;
override SEVERAL: bool;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i < WIDTH) {
        let first = current.rows - select(1u, current.last_n, SEVERAL);
        y[row * WIDTH + i] = x[(first + row) * WIDTH + i];
    }
}
