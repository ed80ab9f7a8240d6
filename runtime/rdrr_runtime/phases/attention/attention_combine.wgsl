// Combine the partial results of split attention: with (m_s, l_s) = stats[s] and m = max_s m_s,
// out = sum_s e^(m_s - m) sums_s / sum_s e^(m_s - m) l_s. An empty split has l_s = 0; its sums may be unwritten.
//
// sums   f32 [rows, HEADS, SPLITS, HEAD_DIM], not yet divided by the exp sum
// stats  f32 [rows, HEADS, SPLITS, 2]: maximum score m_s, exp sum l_s
// out    {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is one head of a row; each thread combines 4 elements. Accumulates in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> sums: array<vec4<f32>>;
var<storage, read> stats: array<vec2<f32>>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override HEAD_DIM: u32;
override SPLITS: u32;

{% include "snippets/has_keys.wgsl" %}

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
        if (has_keys(stat.y)) {
            sum += factor * sums[(at * SPLITS + s) * words + thread.index];
        }
    }
    out[at * words + thread.index] = value4(sum / denominator);
}
