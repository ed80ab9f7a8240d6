// y = min(max(x, limits[FIRST]), limits[FIRST + 1])
//
// x, y    {{ VALUE }} [rows, WIDTH]
// limits  f32
//
// An item is 4 WG elements of a row, 4 for each thread.
{% include "snippets/value.wgsl" %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> limits: array<f32>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;
override FIRST: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i >= WIDTH / 4u) {
        return;
    }
    let at = row * (WIDTH / 4u) + i;
    y[at] = value4(min(max(vec4<f32>(x[at]), vec4<f32>(limits[FIRST])), vec4<f32>(limits[FIRST + 1u])));
}
