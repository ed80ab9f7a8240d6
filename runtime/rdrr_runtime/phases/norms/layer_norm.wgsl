{% if CENTRED %}
// norm(v) = (v - m) / sqrt(mean((v - m)^2) + EPS) * g + b with m = mean(v), over the last axis.
{% else %}
// norm(v) = v / sqrt(mean(v^2) + EPS) * g + b, over the last axis.
{% endif %}
// g = OFFSET + weight{{ ", or 1 without a weight" if GAIN == "none" }}; b = bias, or 0 without a bias
{% if MODE == "out" %}
// y = norm(x)
{% elif MODE == "in_place" %}
// x = norm(x)
{% else %}
// x = x + norm(r)
{% endif %}
//
// weight, bias  f32 [WIDTH]; with GAIN each: [PER_ROW, WIDTH], one for each vector of a row
// x, r, y       {{ VALUE }} [rows, PER_ROW, WIDTH]
//
// An item is one vector of a row. Accumulates in f32, the squares in a second pass after the mean, since
// mean(v^2) - m^2 would cancel.
{% set SOURCE = "r" if MODE == "post" else "x" %}
{% include "snippets/value.wgsl" %}
{% if GAIN != "none" %}
var<storage, read> weight: array<vec4<f32>>;
{% endif %}
{% if BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}
var<storage, {{ "read" if MODE == "out" else "read_write" }}> x: array<vec4<{{ VALUE }}>>;
{% if MODE == "post" %}
var<storage, read> r: array<vec4<{{ VALUE }}>>;
{% elif MODE == "out" %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;
{% endif %}

override WIDTH: u32;
override EPS: f32;
{% if GAIN != "none" %}
override OFFSET: f32;
{% endif %}
override PER_ROW: u32;

{% include "snippets/reduce_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let first = (row * PER_ROW + item) * words;
    var mean = 0.0;
{% if CENTRED %}
    var sum = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        sum += vec4<f32>({{ SOURCE }}[first + i]);
    }
    mean = dot(reduce_sum(sum, thread), vec4<f32>(1.0)) / f32(WIDTH);
{% endif %}
    var squares = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let v = vec4<f32>({{ SOURCE }}[first + i]) - mean;
        squares += v * v;
    }
    let total = reduce_sum(squares, thread);
    let factor = inverseSqrt(dot(total, vec4<f32>(1.0)) / f32(WIDTH) + EPS);
    let own = {{ "item * words" if GAIN == "each" else "0u" }};
    for (var i = thread.index; i < words; i += WG) {
        var v = (vec4<f32>({{ SOURCE }}[first + i]) - mean) * factor;
{% if GAIN != "none" %}
        v *= OFFSET + weight[own + i];
{% endif %}
{% if BIAS %}
        v += bias[own + i];
{% endif %}
{% if MODE == "post" %}
        x[first + i] = value4(vec4<f32>(x[first + i]) + v);
{% elif MODE == "in_place" %}
        x[first + i] = value4(v);
{% else %}
        y[first + i] = value4(v);
{% endif %}
    }
}
