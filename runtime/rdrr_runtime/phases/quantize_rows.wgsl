// Token rows in int8: x = scale q for each 32 elements of a row, scale = max|x| / 127.
//
// current  Step
// x        f32 [rows, PER_ROW, K]: PER_ROW rows here for each token row
// q        int8 by 16 [K_PADDED / 16, ROWS]: a row's next 16 elements lie ROWS words of 16 bytes on
// scales   [K_PADDED / 32, ROWS] pairs f32: scale, and scale times the sum of q
//
// An item is 8 of the PER_ROW rows of 8 token rows, by 8 groups of 32 elements, the groups of a row
// first; a thread takes 32 elements of a row. Elements from K on are zeros; rows beyond the step are
// left alone.
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, read> x: array<vec4<f32>>;
var<storage, read_write> q: array<vec4<u32>>;
var<storage, read_write> scales: array<vec2<f32>>;

override K: u32;
override K_PADDED: u32;          // a multiple of 256
override ROWS: u32;
override PER_ROW: u32;

fn load(row: u32, i: u32) -> vec4<f32> {
    let inside = i < K;
    return select(vec4<f32>(0.0), x[(row * K + select(0u, i, inside)) / 4u], inside);
}

fn abs_max(v: vec4<f32>) -> f32 {
    let amax = max(abs(v.xy), abs(v.zw));
    return max(amax.x, amax.y);
}

fn phase(item: u32, row: u32, thread: Thread) {
    let items = K_PADDED / 256u;  // of 8 rows
    let own = row * PER_ROW + item / items * 8u + thread.index % 8u;
    let group = item % items * 8u + thread.index / 8u;
    if (own >= current.rows * PER_ROW) {
        return;
    }
    var amax = 0.0;
{% for i in range(8) %}
    let v{{ i }} = load(own, group * 32u + {{ 4 * i }}u);
    amax = max(amax, abs_max(v{{ i }}));
{% endfor %}
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
