// x = activate(x), where activate is {{ ACT }} (snippets/activate.wgsl)
//
// x  {{ VALUE }} [rows, WIDTH]
//
// An item is 4 WG elements of a row, 4 for each thread. Computes in f32.
{% include "snippets/value.wgsl" %}
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;

{% include "snippets/activate.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
    let g = vec4<f32>(x[row * words + i]);
    x[row * words + i] = value4(vec4<f32>(activate(g.x), activate(g.y), activate(g.z), activate(g.w)));
}
