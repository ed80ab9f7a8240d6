// Quantize token rows to int8: in(x) = scale q for each {{ 16 if HALVES else 32 }} elements of a vector, with scale = max|in(x)| / 127.
//
// in   plain  in(x) = x
//      norm   in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      gate   in(x) = f(gate, up), where f is ACT of snippets/activate.wgsl
//
// current  Step
// x        f32 [rows, PER_ROW, K]; a token row has PER_ROW vectors. For gate: [rows, K], the gates, or
//          [rows, 2 K], gates and ups
// gain     f32 [K], only for norm
// up       f32 [rows, K], only for gate
// q        16 int8 codes a vec4<u32>, [K_PADDED / 16, ROWS], ROWS counting vectors
// scales   vec2<f32> [K_PADDED / 32, ROWS]: {{ "the scales of both halves" if HALVES else "scale, and scale times the sum of the codes" }}
//
{% if INPUT == "norm" %}
// An item is 4 token rows. WG / 4 threads of each, a power of two, first add up the squares of its elements,
// in f32, and then quantize 32 elements at a time.
{% else %}
// A call covers 8 token rows, which have 8 PER_ROW vectors. An item is 8 of these vectors by 8 groups of
// 32 elements; the items of the same vectors come first. Each thread quantizes 32 elements of a vector.
{% endif %}
// Elements from K on are zeros; vectors beyond the rows of the step are left unchanged.
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, read> x: array<vec4<f32>>;
{% if INPUT == "norm" %}
var<storage, read> gain: array<vec4<f32>>;
{% elif INPUT == "gate" and not JOINED %}
var<storage, read> up: array<vec4<f32>>;
{% endif %}
var<storage, read_write> q: array<vec4<u32>>;
var<storage, read_write> scales: array<vec2<f32>>;

override K: u32;
override K_PADDED: u32;          // a multiple of 256
override ROWS: u32;
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;

var<workgroup> squares: array<f32, WG>;  // of each thread
{% else %}
override PER_ROW: u32;
{% endif %}
{% if INPUT == "gate" %}

{% include "snippets/activate.wgsl" %}
{% endif %}

// Elements i to i + 3 of a vector{{ ", before the norm" if INPUT == "norm" }}.
fn load(row: u32, i: u32) -> vec4<f32> {
    let inside = i < K;
    let at = select(0u, i, inside);
{% if INPUT == "gate" %}
    let g = x[(row * {{ "2u * " if JOINED }}K + at) / 4u];
    let u = {{ "x[(row * 2u * K + K + at) / 4u]" if JOINED else "up[(row * K + at) / 4u]" }};
    let value = vec4<f32>(
{% for c in "xyzw" %}
        gated_activation(g.{{ c }}, u.{{ c }}),
{% endfor %}
    );
{% else %}
    let value = x[(row * K + at) / 4u];
{% endif %}
    return select(vec4<f32>(0.0), value, inside);
}

{% include "products/snippets/int8_group.wgsl" %}

fn store(row: u32, group: u32, made: Int8Group) {
    let at = 2u * group * ROWS + row;
    q[at] = made.first;
    q[at + ROWS] = made.last;
    scales[group * ROWS + row] = made.factors;
}

{% if INPUT == "norm" %}
fn phase(item: u32, row: u32, thread: Thread) {
    let t = thread.index;
    let own = row + t % 4u;
    let source = min(own, current.rows - 1u);
    var sum = vec4<f32>(0.0);
    for (var i = t / 4u * 4u; i < K; i += WG) {
        let v = load(source, i);
        sum += v * v;
    }
    squares[t] = dot(sum, vec4<f32>(1.0));
    for (var half = WG / 2u; half >= 4u; half /= 2u) {
        workgroupBarrier();
        if (t < half) {
            squares[t] += squares[t + half];
        }
    }
    workgroupBarrier();
    let factor = inverseSqrt(squares[t % 4u] / f32(K) + EPS);
    for (var group = t / 4u; group < K_PADDED / 32u; group += WG / 4u) {
        let made = int8_group(array<vec4<f32>, 8>(
{% for i in range(8) %}
            load(source, group * 32u + {{ 4 * i }}u) * (factor * (OFFSET + gain[min(group * 8u + {{ i }}u, K / 4u - 1u)])),
{% endfor %}
        ));
        if (own < current.rows) {
            store(own, group, made);
        }
    }
}
{% else %}
fn phase(item: u32, row: u32, thread: Thread) {
    let items = K_PADDED / 256u;  // items of 8 vectors
    let own = row * PER_ROW + item / items * 8u + thread.index % 8u;
    let group = item % items * 8u + thread.index / 8u;
    if (own >= current.rows * PER_ROW) {
        return;
    }
    store(own, group, int8_group(array<vec4<f32>, 8>(
{% for i in range(8) %}
        load(own, group * 32u + {{ 4 * i }}u),
{% endfor %}
    )));
}
{% endif %}
