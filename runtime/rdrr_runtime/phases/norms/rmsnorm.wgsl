// norm(v) = v / sqrt(mean(v^2) + EPS) * (OFFSET + weight), over the last axis.
{% if MODE == "out" %}
// y = norm(x)
{% elif MODE == "in_place" %}
// x = norm(x)
{% else %}
// x = {{ "FACTOR factor[0] (x + norm(r))" if SCALED else "x + norm(r)" }}
{% endif %}
//
// weight     f32 [WIDTH]
// x, r, y    {{ VALUE }} [rows, PER_ROW, WIDTH]
//
// An item is one vector of a row. Accumulates the sum of squares in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> weight: array<vec4<f32>>;
var<storage, {{ "read" if MODE == "out" else "read_write" }}> x: array<vec4<{{ VALUE }}>>;
{% if SCALED %}
var<storage, read> factor: array<f32>;

override FACTOR: f32;
{% endif %}
{% if MODE == "post" %}
var<storage, read> r: array<vec4<{{ VALUE }}>>;
{% elif MODE == "out" %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;
{% endif %}

override WIDTH: u32;
override EPS: f32;
override OFFSET: f32;
override PER_ROW: u32;

{% include "snippets/reduce_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let first = (row * PER_ROW + item) * words;
    var squares = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let v = vec4<f32>({{ "r" if MODE == "post" else "x" }}[first + i]);
        squares += v * v;
    }
    let total = reduce_sum(squares, thread);
    let inverse = inverseSqrt(dot(total, vec4<f32>(1.0)) / f32(WIDTH) + EPS);
    for (var i = thread.index; i < words; i += WG) {
        let scale = inverse * (OFFSET + weight[i]);
{% if MODE == "post" %}
        let sum = vec4<f32>(x[first + i]) + vec4<f32>(r[first + i]) * scale;
        x[first + i] = value4({{ "sum * FACTOR * factor[0]" if SCALED else "sum" }});
{% elif MODE == "in_place" %}
        x[first + i] = value4(vec4<f32>(x[first + i]) * scale);
{% else %}
        y[first + i] = value4(vec4<f32>(x[first + i]) * scale);
{% endif %}
    }
}
