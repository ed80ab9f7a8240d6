// y[r, n] = sum_k x[r, k] W[n, k], with one block of 256 weights per thread.
//
// current  Step
// x        f32 [rows, K]
// weight   [N, ROW_WORDS] words of Q4_K, row-major
// y        f32 [rows, N]
//
// An item is one output for {{ ROWS }} token rows. Threads take whole blocks, so with K = 1152 only five
// threads have work. Each group of token rows reads all weights again.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> x: array<vec4<f32>>;
var<storage, read> weight: array<Word>;
var<storage, read_write> y: array<f32>;

override K: u32;
override N: u32;
override BLOCKS: u32;      // per stored row
override ROW_WORDS: u32;

{% include "snippets/q4_k_block.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    var acc = vec4<f32>(0.0);
    for (var block = thread.index; block < BLOCKS; block += WG) {
        for (var part = 0u; part < 8u; part++) {
            let unit = block * 8u + part;
            let w = load_unit(item * ROW_WORDS, unit);
{% for i in range(8) %}
            let k{{ i }} = unit_element(unit, {{ i }}u);
            if (k{{ i }} < K) {
{% for r in range(ROWS) %}
                let row{{ r }} = min(row + {{ r }}u, current.rows - 1u);
                acc[{{ r }}] += dot(w[{{ i }}], x[(row{{ r }} * K + k{{ i }}) / 4u]);
{% endfor %}
            }
{% endfor %}
        }
    }
    let total = reduce_sum(acc, thread);
    let own = row + thread.index;
    if (thread.index < {{ ROWS }}u && own < current.rows) {
        y[own * N + item] = total[thread.index];
    }
}
