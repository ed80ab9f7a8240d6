// Quantize token rows to int8: x = scale q for each 32 elements of a vector, with scale = max|x| / 127.
//
// current  Step
// x        f32 [rows, PER_ROW, K]; a token row has PER_ROW vectors
// q        16 int8 codes a vec4<u32>, [K_PADDED / 16, ROWS], ROWS counting vectors
// scales   vec2<f32> [K_PADDED / 32, ROWS]: scale, and scale times the sum of the codes
//
// A call covers 8 token rows, which have 8 PER_ROW vectors. An item is 8 of these vectors by 8 groups of
// 32 elements; the items of the same vectors come first. Each thread quantizes 32 elements of a vector.
// Elements from K on are zeros; vectors beyond the rows of the step are left unchanged.
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, read> x: array<vec4<f32>>;
var<storage, read_write> q: array<vec4<u32>>;
var<storage, read_write> scales: array<vec2<f32>>;

override K: u32;
override K_PADDED: u32;          // a multiple of 256
override ROWS: u32;
override PER_ROW: u32;

{% include "snippets/abs_max.wgsl" %}

fn load(row: u32, i: u32) -> vec4<f32> {
    let inside = i < K;
    return select(vec4<f32>(0.0), x[(row * K + select(0u, i, inside)) / 4u], inside);
}

fn phase(item: u32, row: u32, thread: Thread) {
    let items = K_PADDED / 256u;  // items of 8 vectors
    let own = row * PER_ROW + item / items * 8u + thread.index % 8u;
    let group = item % items * 8u + thread.index / 8u;
    if (own >= current.rows * PER_ROW) {
        return;
    }
    var bits = 0u;
{% for i in range(8) %}
    let v{{ i }} = load(own, group * 32u + {{ 4 * i }}u);
    bits = max(bits, bits_of_abs_max(v{{ i }}));
{% endfor %}
    let amax = bitcast<f32>(bits);
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    var sums = vec4<i32>(0);
{% for i in range(8) %}
    let q{{ i }} = vec4<i32>(round(v{{ i }} * inverse));
    sums += q{{ i }};
{% endfor %}
    let at = 2u * group * ROWS + own;
    q[at] = vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3));
    q[at + ROWS] = vec4<u32>(pack4xI8(q4), pack4xI8(q5), pack4xI8(q6), pack4xI8(q7));
    let scale = amax / 127.0;
    scales[group * ROWS + own] = vec2<f32>(scale, scale * f32(sums.x + sums.y + sums.z + sums.w));
}
