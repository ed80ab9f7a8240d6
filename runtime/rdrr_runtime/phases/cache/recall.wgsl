// y[r, :] = kept[slot[r] mod SLOTS, :]
//
// current  Step; slot[r] is the KV slot of row r
// kept     {{ VALUE }} [SLOTS, WIDTH], the hidden states of the latest slots
// y        {{ VALUE }} [rows, WIDTH]
//
// An item is 4 WG elements of a row of y, 4 for each thread.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> kept: array<vec4<{{ VALUE }}>>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override SLOTS: u32;
override WIDTH: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i < WIDTH / 4u) {
        let slot = current.row[row].slot % SLOTS;
        y[row * (WIDTH / 4u) + i] = kept[slot * (WIDTH / 4u) + i];
    }
}
