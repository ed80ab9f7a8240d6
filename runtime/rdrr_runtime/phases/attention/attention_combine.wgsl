// Combine the partial results of split attention, see products/snippets/combine_splits.wgsl.
//
// sums   f32 [rows, HEADS, SPLITS, HEAD_DIM], not yet divided by the exp sum
// stats  f32 [rows, HEADS, SPLITS, 2]: maximum score, exp sum
// out    {{ VALUE }} [rows, K], where K = HEADS HEAD_DIM
//
// An item is one head of a row; each thread combines 4 elements. Accumulates in f32.
{% include "snippets/value.wgsl" %}
var<storage, read> sums: array<vec4<f32>>;
var<storage, read> stats: array<vec2<f32>>;
var<storage, read_write> out: array<vec4<{{ VALUE }}>>;

override K: u32;
override HEAD_DIM: u32;
override SPLITS: u32;

{% set SPLIT_SUMS = "sums" %}
{% include "products/snippets/combine_splits.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    if (thread.index < HEAD_DIM / 4u) {
        let quad = item * (HEAD_DIM / 4u) + thread.index;
        out[row * (K / 4u) + quad] = value4(combined(row, quad));
    }
}
