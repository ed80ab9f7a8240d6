// Join the splits of attention: out = sum_s e_s sums_s / sum_s e_s weights_s,
// e_s = exp(largest_s - max_s largest_s). An empty split has denominator 0 and sums 0.
//
// sums   f32 [rows, HEADS, SPLITS, HEAD_DIM]
// stats  f32 [rows, HEADS, SPLITS, 2]: max_score score, sum of exponentials (the denominator)
// out    {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is a head of a row; a thread joins 4 elements, in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> sums: array<vec4<f32>>;
var<storage, read> stats: array<vec2<f32>>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override HEAD_DIM: u32;
override SPLITS: u32;

fn phase(item: u32, row: u32, thread: Thread) {
    let words = HEAD_DIM / 4u;
    if (thread.index >= words) {
        return;
    }
    let at = row * HEADS + item;
    var max_score = -3.0e38;
    for (var s = 0u; s < SPLITS; s++) {
        max_score = max(max_score, stats[at * SPLITS + s].x);
    }
    var denominator = 0.0;
    var sum = vec4<f32>(0.0);
    for (var s = 0u; s < SPLITS; s++) {
        let stat = stats[at * SPLITS + s];
        let factor = exp(stat.x - max_score);
        denominator += factor * stat.y;
        sum += factor * sums[(at * SPLITS + s) * words + thread.index];
    }
    out[at * words + thread.index] = value4(sum / denominator);
}
