// The products of B and C within chunks of CHUNK rows of one sequence, which all heads of a group share:
//
//   products[i, j] = C[i] . B[j] for j <= i, else 0
//
// Rows beyond the pass count as zero.
//
// current   Step; all rows belong to one sequence, in slot order
// xbc       {{ VALUE }} [rows, HEADS HEAD_DIM + 2 GROUPS STATE_DIM]: x of the heads, B and C of the groups
// products  f32 [chunks, GROUPS, CHUNK, CHUNK]
//
// An item is WG / CHUNK rows of a group in a chunk, whose first row is `row`; a thread computes one product.
// Accumulates in f32.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> xbc: array<vec4<{{ VALUE }}>>;
var<storage, read_write> products: array<f32>;

override HEADS: u32;
override HEAD_DIM: u32;
override GROUPS: u32;
override STATE_DIM: u32;

const CHUNK = {{ CHUNK }}u;

fn phase(item: u32, row: u32, thread: Thread) {
    let blocks = CHUNK * CHUNK / WG;
    let group = item / blocks;
    let i = (item % blocks) * (WG / CHUNK) + thread.index / CHUNK;
    let j = thread.index % CHUNK;
    let stride = (HEADS * HEAD_DIM + 2u * GROUPS * STATE_DIM) / 4u;
    let first = (HEADS * HEAD_DIM + group * STATE_DIM) / 4u;
    var sum = 0.0;
    if (j <= i && row + i < current.rows) {
        let b = (row + j) * stride + first;
        let c = (row + i) * stride + first + GROUPS * STATE_DIM / 4u;
        for (var n = 0u; n < STATE_DIM / 4u; n++) {
            sum += dot(vec4<f32>(xbc[b + n]), vec4<f32>(xbc[c + n]));
        }
    }
    products[((row / CHUNK * GROUPS + group) * CHUNK + i) * CHUNK + j] = sum;
}
