// The selective state space chunk by chunk, with what state_space_products.wgsl has computed (the form SSD of
// Dao and Gu 2024, arXiv 2405.21060, section 6). For each head with its state S, and each chunk of CHUNK rows
// with the steps d, the decays g as in state_space.wgsl and G[i] = log(g[0] g[1] ... g[i]):
//
//   U = d X
//   Y = e^G (C S) + (products e^(G[i] - G[j])) U + skip X
//   S = e^G[last] S + (B e^(G[last] - G))^T U
//
// current   Step; all rows belong to one sequence, in slot order. S is zero at slot 0.
// xbc       {{ VALUE }} [rows, HEADS HEAD_DIM + 2 GROUPS STATE_DIM]: x of the heads, B and C of the groups
// step      {{ VALUE }} [rows, HEADS]
// rates     f32 [3, HEADS]: rate, step_bias, skip
// products  f32 [chunks, GROUPS, CHUNK, CHUNK]
// state     f32 [sequences, HEADS, STATE_DIM, HEAD_DIM]
// y         {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is a head and {{ COLUMNS }} of its columns. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> xbc: array<vec4<{{ VALUE }}>>;
var<storage, read> step: array<{{ VALUE }}>;
var<storage, read> rates: array<f32>;
var<storage, read> products: array<f32>;
var<storage, read_write> state: array<vec4<f32>>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override HEAD_DIM: u32;
override GROUPS: u32;
override STATE_DIM: u32;
override LEAST_STEP: f32;
override MOST_STEP: f32;
override STEP_SCALE: f32;

const CHUNK = {{ CHUNK }}u;
const QUADS = {{ COLUMNS // 4 }}u;  // vectors of 4 columns of an item; WG = CHUNK QUADS

{% include "states/snippets/state_space_step.wgsl" %}

var<workgroup> held: array<vec4<f32>, {{ STATE_DIM }}u * QUADS>;  // the columns of S
var<workgroup> writes: array<vec4<f32>, CHUNK * QUADS>;           // U
var<workgroup> lengths: array<f32, CHUNK>;                        // d
var<workgroup> logs: array<f32, CHUNK>;                           // log g
var<workgroup> sums: array<f32, CHUNK>;                           // G

fn phase(item: u32, thread: Thread) {
    let blocks = HEAD_DIM / (4u * QUADS);
    let head = item / blocks;
    let group = head / (HEADS / GROUPS);
    let quad = thread.index % QUADS;
    let i = thread.index / QUADS;
    let column = (item % blocks) * QUADS + quad;
    let words = STATE_DIM / 4u;
    let stride = (HEADS * HEAD_DIM + 2u * GROUPS * STATE_DIM) / 4u;
    let first_b = HEADS * HEAD_DIM / 4u + group * words;
    let start = current.row[0];
    let at = (start.sequence * HEADS + head) * STATE_DIM * (HEAD_DIM / 4u) + column;
    for (var n = i; n < STATE_DIM; n += CHUNK) {
        held[n * QUADS + quad] = select(vec4<f32>(0.0), state[at + n * (HEAD_DIM / 4u)], start.slot > 0u);
    }
    for (var first = 0u; first < current.rows; first += CHUNK) {
        let chunk = ((first / CHUNK * GROUPS + group) * CHUNK + i) * CHUNK;
        let own = (first + i) * stride;
        let is_row = first + i < current.rows;
        if (thread.index < CHUNK) {
            var length = 0.0;
            if (first + thread.index < current.rows) {
                length = step_length(first + thread.index, head);
            }
            lengths[thread.index] = length;
            logs[thread.index] = log_decay(length, head);
        }
        workgroupBarrier();
        if (thread.index < CHUNK) {
            var sum = 0.0;
            for (var j = 0u; j <= thread.index; j++) {
                sum += logs[j];
            }
            sums[thread.index] = sum;
        }
        var x = vec4<f32>(0.0);
        if (is_row) {
            x = vec4<f32>(xbc[own + head * (HEAD_DIM / 4u) + column]);
        }
        writes[thread.index] = lengths[i] * x;
        workgroupBarrier();
        if (is_row) {
            var known = vec4<f32>(0.0);
            for (var n = 0u; n < words; n++) {
                let c = vec4<f32>(xbc[own + first_b + GROUPS * words + n]);
                for (var m = 0u; m < 4u; m++) {
                    known += c[m] * held[(4u * n + m) * QUADS + quad];
                }
            }
            var out = exp(max(sums[i], -80.0)) * known + rates[2u * HEADS + head] * x;
            for (var j = 0u; j <= i; j++) {
                let factor = products[chunk + j] * exp(clamp(sums[i] - sums[j], -80.0, 0.0));
                out += factor * writes[j * QUADS + quad];
            }
            y[((first + i) * HEADS + head) * (HEAD_DIM / 4u) + column] = value4(out);
        }
        workgroupBarrier();
        let whole = sums[CHUNK - 1u];
        let rows = min(CHUNK, current.rows - first);
        for (var n = i; n < STATE_DIM; n += CHUNK) {
            var s = exp(max(whole, -80.0)) * held[n * QUADS + quad];
            for (var j = 0u; j < rows; j++) {
                let b = f32(xbc[(first + j) * stride + first_b + n / 4u][n % 4u]);
                s += b * exp(clamp(whole - sums[j], -80.0, 0.0)) * writes[j * QUADS + quad];
            }
            held[n * QUADS + quad] = s;
        }
        workgroupBarrier();
    }
    for (var n = i; n < STATE_DIM; n += CHUNK) {
        state[at + n * (HEAD_DIM / 4u)] = held[n * QUADS + quad];
    }
}
