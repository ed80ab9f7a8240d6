// kept[(slot[r] + AHEAD) mod SLOTS, :] = x[r, :]
//
// current  Step; slot[r] is the KV slot of row r
// x        {{ VALUE }} [rows, WIDTH], at most SLOTS rows
// kept     {{ VALUE }} [SLOTS, WIDTH], the hidden states of the latest slots
//
// An item is 4 WG elements of a row of x, 4 for each thread.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read_write> kept: array<vec4<{{ VALUE }}>>;

override SLOTS: u32;
override AHEAD: u32;
override WIDTH: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i < WIDTH / 4u) {
        let slot = (current.row[row].slot + AHEAD) % SLOTS;
        kept[slot * (WIDTH / 4u) + i] = x[row * (WIDTH / 4u) + i];
    }
}
