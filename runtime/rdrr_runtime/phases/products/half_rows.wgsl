// Round rows to f16, each multiplied by the power of two that brings its largest magnitude to at least 2^14:
// in(x) = factor y, with y in f16.
//
// in   plain  in(x) = x
//      norm   in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      gate   in(x) = f(gate, up), where f is ACT of snippets/activate.wgsl
//      combine  the partial results of split attention, see snippets/combine_splits.wgsl
//
{% if SUMS %}
// x first gets the sum of a product added that left it in splits, as sum_splits does.
//
{% endif %}
// current  Step
// x        f32 [rows, K]. For gate: the gates, or [rows, 2 K], gates and ups; for combine [rows, K / HEAD_DIM, SPLITS, HEAD_DIM]
// gain     f32 [K], only for norm
{% if SUMS %}
// sums     f32 [SUMS, SUM_ROWS, K]
// bias     f32 [K], only with SUM_BIAS
{% endif %}
// up       f32 [rows, K], only for gate
// stats    f32 [rows, K / HEAD_DIM, SPLITS, 2], only for combine
// y        f16 [ROWS, K_PADDED], 4 values a vector, zeros from K on
// factors  f32 [ROWS]
//
// An item is a row, of which a thread holds {{ HELD }} times 4 elements. Rows beyond those of the step are left unchanged.
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, {{ "read_write" if SUMS else "read" }}> x: array<vec4<f32>>;
{% if SUMS %}
var<storage, read> sums: array<vec4<f32>>;
{% if SUM_BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}
{% endif %}
{% if INPUT == "norm" %}
var<storage, read> gain: array<vec4<f32>>;
{% elif INPUT == "gate" and not JOINED %}
var<storage, read> up: array<vec4<f32>>;
{% elif INPUT == "combine" %}
var<storage, read> stats: array<vec2<f32>>;
{% endif %}
var<storage, read_write> y: array<vec4<f16>>;
var<storage, read_write> factors: array<f32>;

override K: u32;
override K_PADDED: u32;          // a multiple of 64
{% if SUMS %}
override SUM_ROWS: u32;
{% endif %}
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;

{% set SUM = "f32" %}
{% include "snippets/reduce_sum.wgsl" %}
{% endif %}
{% include "snippets/reduce_max.wgsl" %}
{% if INPUT == "gate" %}

{% include "snippets/activate.wgsl" %}
{% elif INPUT == "combine" %}
override SPLITS: u32;
override HEAD_DIM: u32;

{% include "products/snippets/combine_splits.wgsl" %}
{% endif %}

// Elements 4 i to 4 i + 3 of a row{{ ", before the norm" if INPUT == "norm" }}; zeros from K on.
fn load(row: u32, i: u32) -> vec4<f32> {
    let inside = i < K / 4u;
    let at = select(0u, i, inside);
{% if INPUT == "gate" %}
    let g = x[row * {{ "2u * " if JOINED }}(K / 4u) + at];
    let u = {{ "x[(2u * row + 1u) * (K / 4u) + at]" if JOINED else "up[row * (K / 4u) + at]" }};
    let value = vec4<f32>(
{% for c in "xyzw" %}
        gated_activation(g.{{ c }}, u.{{ c }}),
{% endfor %}
    );
{% elif INPUT == "combine" %}
    let value = combined(row, at);
{% elif SUMS %}
{% for s in range(SUMS) %}
    let s{{ s }} = sums[({{ s }}u * SUM_ROWS + row) * (K / 4u) + at];
{% endfor %}
    let value = {% for s in range(SUMS) %}s{{ s }} + {% endfor %}x[row * (K / 4u) + at]{{ " + bias[at]" if SUM_BIAS }};
{% else %}
    let value = x[row * (K / 4u) + at];
{% endif %}
    return select(vec4<f32>(0.0), value, inside);
}

fn phase(item: u32, row: u32, thread: Thread) {
    if (row >= current.rows) {
        return;
    }
    let t = thread.index;
{% for i in range(HELD) %}
    var v{{ i }} = load(row, t + {{ i }}u * WG);
{% endfor %}
{% if SUMS %}
{% for i in range(HELD) %}
    if (t + {{ i }}u * WG < K / 4u) {
        x[row * (K / 4u) + t + {{ i }}u * WG] = v{{ i }};
    }
{% endfor %}
{% endif %}
{% if INPUT == "norm" %}
    var squares = 0.0;
{% for i in range(HELD) %}
    squares += dot(v{{ i }}, v{{ i }});
{% endfor %}
    let norm = inverseSqrt(reduce_sum(squares, thread) / f32(K) + EPS);
{% for i in range(HELD) %}
    v{{ i }} *= norm * (OFFSET + gain[min(t + {{ i }}u * WG, K / 4u - 1u)]);
{% endfor %}
{% endif %}
    var most = vec4<f32>(0.0);
{% for i in range(HELD) %}
    most = max(most, abs(v{{ i }}));
{% endfor %}
    let largest = reduce_max(max(max(most.x, most.y), max(most.z, most.w)), thread);
    // The exponents stay within those of normal numbers, also for zeros and for what is not finite. A maximum
    // may pass over NaN, which stays what it is.
    let exponent = clamp(bitcast<u32>(largest) >> 23u, 41u, 241u);
    let scale = bitcast<f32>((268u - exponent) << 23u);
    if (t == 0u) {
        factors[row] = bitcast<f32>((exponent - 14u) << 23u);
    }
{% for i in range(HELD) %}
    if (t + {{ i }}u * WG < K_PADDED / 4u) {
        y[row * (K_PADDED / 4u) + t + {{ i }}u * WG] = vec4<f16>(v{{ i }} * scale);
    }
{% endfor %}
}
