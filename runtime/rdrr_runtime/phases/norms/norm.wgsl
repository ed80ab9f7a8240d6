{% set PLAIN = GAIN == "shared" and not CENTRED and not BIAS %}
{% set SOURCE = "r" if MODE == "post" else "x" %}
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
// x = {{ "FACTOR factor[0] (x + norm(r))" if SCALED else "x + norm(r)" }}
{% endif %}
//
// weight, bias  f32 [WIDTH]; with GAIN each: [PER_ROW, WIDTH], one for each vector of a row
// x, r, y       {{ VALUE }} [rows, PER_ROW, WIDTH]
//
// An item is one vector of a row. Accumulates in f32, the squares in a second pass after the mean, since
// mean(v^2) - m^2 would cancel.
{% include "snippets/value.wgsl" %}
{% if GAIN != "none" %}
var<storage, read> weight: array<vec4<f32>>;
{% endif %}
{% if BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}
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
{% if GAIN != "none" %}
override OFFSET: f32;
{% endif %}
override PER_ROW: u32;

{% include "snippets/reduce_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let first = (row * PER_ROW + item) * words;
{% if CENTRED %}
    var sum = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        sum += vec4<f32>({{ SOURCE }}[first + i]);
    }
    let mean = dot(reduce_sum(sum, thread), vec4<f32>(1.0)) / f32(WIDTH);
{% endif %}
    var squares = vec4<f32>(0.0);
    for (var i = thread.index; i < words; i += WG) {
        let v = vec4<f32>({{ SOURCE }}[first + i]){{ " - mean" if CENTRED }};
        squares += v * v;
    }
    let total = reduce_sum(squares, thread);
    let inverse = inverseSqrt(dot(total, vec4<f32>(1.0)) / f32(WIDTH) + EPS);
{% if not PLAIN %}
    let own = {{ "item * words" if GAIN == "each" else "0u" }};
{% endif %}
    for (var i = thread.index; i < words; i += WG) {
{% if PLAIN %}
        let v = vec4<f32>({{ SOURCE }}[first + i]) * (inverse * (OFFSET + weight[i]));
{% else %}
        var v = (vec4<f32>({{ SOURCE }}[first + i]){{ " - mean" if CENTRED }}) * inverse;
{% if GAIN != "none" %}
        v *= OFFSET + weight[own + i];
{% endif %}
{% if BIAS %}
        v += bias[own + i];
{% endif %}
{% endif %}
{% if MODE == "post" %}
        let sum = vec4<f32>(x[first + i]) + v;
        x[first + i] = value4({{ "sum * FACTOR * factor[0]" if SCALED else "sum" }});
{% else %}
        {{ "x" if MODE == "in_place" else "y" }}[first + i] = value4(v);
{% endif %}
    }
}
