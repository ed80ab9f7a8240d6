// Quantize a small batch of token rows to int8: in(x) = scale q for each {{ 16 if HALVES else 32 }} elements of a vector, with
// scale = max|in(x)| / 127.
//
// in   plain    in(x) = x
//      norm     in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      combine  in(x)[h] = sum_s e^(m_s - m) x[h, s] / sum_s e^(m_s - m) l_s, which combines the partial
//               results of split attention, with (m_s, l_s) = stats[h, s] and m = max_s m_s
//
// x        f32 {{ "[rows, K / HEAD_DIM, SPLITS, HEAD_DIM]" if INPUT == "combine" else "[rows, PER_ROW, K]" }}
// gain     f32 [K], only for norm
// stats    f32 [rows, K / HEAD_DIM, SPLITS, 2], only for combine
// y        u32 [rows, PER_ROW, 5, UNITS, 4]: for each unit of 64 elements four times 16 codes, then four f32:
{% if HALVES %}
//          the scale of each 16 elements
{% else %}
//          the scale of the first 32 elements, this scale times the sum of their codes, and the same two
//          numbers of the last 32 elements
{% endif %}
{% set SHARING = 4 if HALVES else 8 %}
//
// An item is STEPS iterations, in each of which every thread quantizes {{ HELD }} times 4 elements, so that {{ SHARING }} threads
// have the elements of a scale; for norm these are all elements of a vector. The root mean square divides the
// scales alone, so the codes do not wait for it. Elements from K on are zeros. Accumulates in f32.
var<storage, read> x: array<vec4<f32>>;
var<storage, read_write> y: array<u32>;
{% if INPUT == "norm" %}
var<storage, read> gain: array<vec4<f32>>;
{% elif INPUT == "combine" %}
var<storage, read> stats: array<vec2<f32>>;
{% endif %}

override K: u32;
override UNITS: u32;             // units of 64 elements of a vector, zero padding included
override PER_ROW: u32;           // vectors of a token row
override VECTOR_ITEMS: u32;      // items of a vector
override STEPS: u32;             // iterations of an item
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;
{% elif INPUT == "combine" %}
override SPLITS: u32;
override HEAD_DIM: u32;
{% endif %}

{% include "snippets/abs_max.wgsl" %}
{% if INPUT == "norm" %}
{% set SUM = "f32" %}
{% include "snippets/reduce_sum.wgsl" %}
var<workgroup> scales: array<{{ "f32, 4u" if HALVES else "vec2<f32>, 2u" }} * UNITS>;  // as in y, but not yet divided by the root mean square
{% endif %}
{% set LANES_TOGETHER, SUMMED = 8, not HALVES %}
{% include "products/snippets/quantize_quad.wgsl" %}

{% if INPUT == "combine" %}

{% include "products/snippets/combine_splits.wgsl" %}

fn load(vector: u32, quad: u32) -> vec4<f32> {
    let inside = 4u * quad < K;
    return select(vec4<f32>(0.0), combined(vector, min(quad, K / 4u - 1u)), inside);
}
{% else %}

fn load(vector: u32, quad: u32) -> vec4<f32> {
    let inside = 4u * quad < K;
    return select(vec4<f32>(0.0), x[vector * (K / 4u) + select(0u, quad, inside)], inside);
}
{% endif %}

// Quantize 4 elements of a vector, `quad` of which are before them.
fn quantize(v: vec4<f32>, vector: u32, quad: u32, t: u32, subgroup_size: u32) {
    let rounded = quantized(v, t, subgroup_size);
    if (quad < 16u * UNITS) {
        y[4u * ((5u * vector + quad % 16u / 4u) * UNITS + quad / 16u) + quad % 4u] = rounded.codes;
        if (quad % {{ SHARING }}u == 0u) {
            let factors = {{ "rounded.scale" if HALVES else "vec2<f32>(rounded.scale, rounded.scale * f32(rounded.sum))" }};
{% if INPUT == "norm" %}
            scales[quad / {{ SHARING }}u] = factors;
{% else %}
            store_scale(vector, quad / {{ SHARING }}u, factors);
{% endif %}
        }
    }
}

// Store the scale of {{ 4 * SHARING }} elements, `group` times as many of which are before them{{ ", and its product" if not HALVES }}.
{% if HALVES %}
fn store_scale(vector: u32, group: u32, scale: f32) {
    y[4u * (5u * vector + 4u) * UNITS + group] = bitcast<u32>(scale);
}
{% else %}
fn store_scale(vector: u32, group: u32, scale: vec2<f32>) {
    let at = 4u * (5u * vector + 4u) * UNITS + 2u * group;
    y[at] = bitcast<u32>(scale.x);
    y[at + 1u] = bitcast<u32>(scale.y);
}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32) {
    let vector = row * PER_ROW + item / VECTOR_ITEMS;
    var t = thread.index;
{% if SUBGROUPS %}
    if (subgroup_size >= 8u) {
        t = thread.subgroup * subgroup_size + thread.lane;
    }
{% endif %}
{% if INPUT == "norm" %}
    var squares = 0.0;
{% endif %}
    for (var step = 0u; step < STEPS; step++) {
        let first = (item % VECTOR_ITEMS * STEPS + step) * {{ HELD }}u * WG + t;
{% for i in range(HELD) %}
        let quad{{ i }} = first + {{ i }}u * WG;
{% if INPUT == "norm" %}
        let gain{{ i }} = gain[min(quad{{ i }}, K / 4u - 1u)];
{% endif %}
        let v{{ i }} = load(vector, quad{{ i }});
{% endfor %}
{% for i in range(HELD) %}
{% if INPUT == "norm" %}
        squares += dot(v{{ i }}, v{{ i }});
        quantize(v{{ i }} * (OFFSET + gain{{ i }}), vector, quad{{ i }}, t, subgroup_size);
{% else %}
        quantize(v{{ i }}, vector, quad{{ i }}, t, subgroup_size);
{% endif %}
{% endfor %}
    }
{% if INPUT == "norm" %}
    let factor = inverseSqrt(reduce_sum(squares, thread) / f32(K) + EPS);
    for (var group = t; group < {{ 16 // SHARING }}u * UNITS; group += WG) {
        store_scale(vector, group, factor * scales[group]);
    }
{% endif %}
}
