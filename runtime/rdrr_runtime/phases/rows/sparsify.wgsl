// x = max(x - (mean + MULTIPLIER deviation), 0), over the elements of a row
//
// x  {{ VALUE }} [rows, WIDTH]
//
// One call for each row. Accumulates in f32: first the mean, then the squares of the distances from it.
{% include "snippets/value.wgsl" %}
var<storage, read_write> x: array<vec4<{{ VALUE }}>>;

override WIDTH: u32;
override MULTIPLIER: f32;

{% include "snippets/float_bits.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

fn phase(row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let first = row * words;
    var sum = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        sum += vec4<f32>(x[first + i]);
    }
    let mean = dot(reduce_sum(sum, thread), vec4<f32>(1.0)) / f32(WIDTH);
    var squares = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let v = vec4<f32>(x[first + i]) - mean;
        squares += v * v;
    }
    let variance = dot(reduce_sum(squares, thread), vec4<f32>(1.0)) / f32(WIDTH);
    let cutoff = mean + MULTIPLIER * sqrt(variance);
    for (var i = thread.index; i < words; i += WG) {
        let v = vec4<f32>(x[first + i]) - cutoff;
        x[first + i] = value4(select(max(v, vec4<f32>(0.0)), v, is_nan(cutoff)));  // max would hide NaN
    }
}
