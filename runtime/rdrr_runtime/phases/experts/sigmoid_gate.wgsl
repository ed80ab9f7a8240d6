// branch[r, :] *= sigmoid(x[r, :] . weight), one factor for each row
//
// x        {{ VALUE }} [rows, K]
// weight   f32 [K]
// branch   {{ VALUE }} [rows, WIDTH]
//
// One call for each row. Accumulates in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> weight: array<vec4<f32>>;
var<storage, read_write> branch: array<vec4<{{ VALUE }}>>;

override K: u32;
override WIDTH: u32;

{% include "snippets/sigmoid.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

fn phase(row: u32, thread: Thread) {
    var products = vec4<f32>(0.0);
    for (var i = thread.index; i < K / 4u; i += WG) {
        products += vec4<f32>(x[row * (K / 4u) + i]) * weight[i];
    }
    let score = dot(reduce_sum(products, thread), vec4<f32>(1.0));
    let factor = sigmoid(score);
    for (var i = thread.index; i < WIDTH / 4u; i += WG) {
        let at = row * (WIDTH / 4u) + i;
        branch[at] = value4(vec4<f32>(branch[at]) * factor);
    }
}
