// y[r, n] = sum_k x[r, k] W[n, k], with one output per thread and no data shared between threads.
//
// current  Step
// x        f32 [rows, K]
// weight   {{ WEIGHT }} row-major [N, ROW], or column-major [K, ROW]; two f16 per word
// y        f32 [rows, N]
//
// An item is WIDE outputs for WG / WIDE token rows.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> x: array<f32>;
var<storage, read> weight: array<{{ "u32" if WEIGHT == "f16" else "f32" }}>;
var<storage, read_write> y: array<f32>;

override K: u32;
override N: u32;
override ROW: u32;         // weights per stored row, including padding
override COLUMN: bool;
override WIDE: u32;        // threads along the outputs; WG / WIDE threads are along the token rows

fn weight_at(index: u32) -> f32 {
{% if WEIGHT == "f16" %}
    return unpack2x16float(weight[index / 2u])[index % 2u];
{% else %}
    return weight[index];
{% endif %}
}

fn phase(item: u32, row: u32, thread: Thread) {
    let n = item * WIDE + thread.index % WIDE;
    let r = row + thread.index / WIDE;
    if (n >= N || r >= current.rows) {
        return;
    }
    var sum = 0.0;
    for (var k = 0u; k < K; k++) {
        sum += x[r * K + k] * weight_at(select(n * ROW + k, k * ROW + n, COLUMN));
    }
    y[r * N + n] = sum;
}
