{% if OP == "add" %}
// x = x + FACTOR r
{% elif OP == "converted" %}
// x = r
{% elif OP == "softcap" %}
// x = FACTOR tanh(x / FACTOR); NaN and infinity stay as they are, so that they are found
{% elif OP == "gain" %}
// x = FACTOR weight x
{% elif OP == "bias" %}
// x = FACTOR weight + x
{% else %}
// x = FACTOR x
{% endif %}
//
// x  {{ X_VALUE }} [rows, WIDTH]
{% if OP == "add" %}
// r  {{ VALUE }} [rows, WIDTH]
{% elif OP == "converted" %}
// r  a row in fixed point, see snippets/fixed_point.wgsl
{% elif OP in ("gain", "bias") %}
// weight  f32 [GAINS], where GAINS is WIDTH, or 1 for the same factor on all elements
{% endif %}
//
// An item is WG elements of a row, one for each thread.
{% include "snippets/value.wgsl" %}
{% if OP == "softcap" %}
{% include "snippets/float_bits.wgsl" %}
{% elif OP == "converted" %}
{% include "snippets/fixed_point.wgsl" %}
{% endif %}
var<storage, read_write> x: array<{{ X_VALUE }}>;
{% if OP == "add" %}
var<storage, read> r: array<{{ VALUE }}>;
{% elif OP == "converted" %}
var<storage, read> r: array<u32>;
{% elif OP in ("gain", "bias") %}
var<storage, read> weight: array<f32>;
{% endif %}

override WIDTH: u32;
override FACTOR: f32;
{% if OP in ("gain", "bias") %}
override GAINS: u32;
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
    let i = item * WG + thread.index;
    if (i >= WIDTH) {
        return;
    }
    let at = row * WIDTH + i;
    let v = f32(x[at]);
{% if OP == "add" %}
    let out = v + FACTOR * f32(r[at]);
{% elif OP == "converted" %}
    let large = bitcast<f32>(r[2u * WIDTH + 4u + i]);
    let out = from_fixed_point(vec4<u32>(r[i]), vec4<u32>(r[WIDTH + i])).x + large;
{% elif OP == "softcap" %}
    let out = select(v, FACTOR * tanh(clamp(v / FACTOR, -15.0, 15.0)), is_finite(v));
{% elif OP == "gain" %}
    let out = FACTOR * weight[i % GAINS] * v;
{% elif OP == "bias" %}
    let out = FACTOR * weight[i % GAINS] + v;
{% else %}
    let out = FACTOR * v;
{% endif %}
    x[at] = {{ "value(out)" if X_VALUE == VALUE else "out" }};
}
