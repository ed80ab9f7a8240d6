// y = activate(gate) * up, where activate is {{ ACT }} (snippets/activate.wgsl)
//
{% if FUSED %}
// gate_up   {{ VALUE }} [rows, 2 WIDTH]: gate, then up
{% else %}
// gate, up  {{ VALUE }} [rows, WIDTH]
{% endif %}
// y         {{ VALUE }} [rows, WIDTH]
//
// An item is 4 WG elements of a row, 4 for each thread. Computes in f32.
{% include "snippets/value.wgsl" %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;
{% if FUSED %}
var<storage, read> gate_up: array<vec4<{{ VALUE }}>>;
{% else %}
var<storage, read> gate: array<vec4<{{ VALUE }}>>;
var<storage, read> up: array<vec4<{{ VALUE }}>>;
{% endif %}

override WIDTH: u32;

{% include "snippets/activate.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
{% if FUSED %}
    let first = row * 2u * words + i;
    let g = vec4<f32>(gate_up[first]);
    let u = vec4<f32>(gate_up[first + words]);
{% else %}
    let g = vec4<f32>(gate[row * words + i]);
    let u = vec4<f32>(up[row * words + i]);
{% endif %}
    let a = vec4<f32>(activate(g.x), activate(g.y), activate(g.z), activate(g.w));
    y[row * words + i] = value4(a * u);
}
