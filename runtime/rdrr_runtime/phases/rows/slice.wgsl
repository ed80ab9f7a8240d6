// y[r, g, :] = x[r, g, FIRST : FIRST + WIDTH]
//
// x  {{ VALUE }} [rows, GROUPS, SIZE]
// y  {{ VALUE }} [rows, GROUPS, WIDTH]
//
// An item is 4 WG elements of a row of y, 4 for each thread.
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override GROUPS: u32;
override SIZE: u32;
override FIRST: u32;
override WIDTH: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= GROUPS * words) {
        return;
    }
    let group = row * GROUPS + i / words;
    y[row * GROUPS * words + i] = x[group * (SIZE / 4u) + FIRST / 4u + i % words];
}
