// z = [x, y sqrt(mean(x_0^2)) / sqrt(max(mean(y^2), FLOOR))], where x_0 are the first WIDTH elements of x
//
// x  {{ VALUE }} [rows, BEFORE, WIDTH]
// y  {{ VALUE }} [rows, WIDTH]
// z  {{ VALUE }} [rows, BEFORE + 1, WIDTH]
//
// One call for each row. Accumulates in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> y: array<vec4<{{ VALUE }}>>;
var<storage, read_write> z: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;
override BEFORE: u32;
override FLOOR: f32;

{% include "snippets/reduce_sum.wgsl" %}

fn phase(row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let first = row * BEFORE * words;
    let target_word = row * (BEFORE + 1u) * words;
    var squares = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let a = vec4<f32>(x[first + i]);
        let b = vec4<f32>(y[row * words + i]);
        squares += vec4<f32>(dot(a, a), dot(b, b), 0.0, 0.0);
    }
    let means = reduce_sum(squares, thread) / f32(WIDTH);
    let factor = sqrt(means.x) * inverseSqrt(max(means.y, FLOOR));
    for (var i = thread.index; i < BEFORE * words; i += WG) {
        z[target_word + i] = x[first + i];
    }
    for (var i = thread.index; i < words; i += WG) {
        z[target_word + BEFORE * words + i] = value4(factor * vec4<f32>(y[row * words + i]));
    }
}
