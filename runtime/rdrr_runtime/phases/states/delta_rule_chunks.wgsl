// The parts of the gated delta rule that do not depend on the state, for chunks of CHUNK rows of one
// sequence. With k, q, b as in delta_rule.wgsl and G[i] = log(g[0] g[1] ... g[i]) within the chunk:
//
//   A[i, j] = b[i] (k[i] . k[j]) e^(G[i] - G[j]) for j < i, else 0
//   solved[i, j] = ((I + A)^-1)[i, j] b[j]
//   scores[i, j] = (q[i] . k[j]) e^(G[i] - G[j]) for j <= i, else 0
//   factors[i] = (G[i], 1 / |key[i]|, 1 / (sqrt(KEY_DIM) |query[i]|), 0), with EPS in the lengths
//
// Rows beyond the pass count as rows with b = 0 and g = 1 and with zero queries and keys.
//
// current          Step; all rows belong to one sequence, in slot order
// qkv              {{ VALUE }} [rows, 2 KEY_HEADS KEY_DIM + HEADS VALUE_DIM]: queries, keys, values
// decay, strength  {{ VALUE }} [rows, HEADS]
// rates            f32 [2, HEADS]: rate, decay_bias
// solved, scores   f32 [chunks, HEADS, CHUNK, CHUNK]
// factors          f32 [chunks, HEADS, CHUNK, 4]
//
// An item is a value head of a chunk, whose first row is `row`. Accumulates in f32. The matrix is
// inverted by forward substitution, one thread for each column.
{% include "snippets/step.wgsl" %}
var<storage, read> current: Step;
var<storage, read> qkv: array<vec4<{{ VALUE }}>>;
var<storage, read> decay: array<{{ VALUE }}>;
var<storage, read> strength: array<{{ VALUE }}>;
var<storage, read> rates: array<f32>;
var<storage, read_write> solved: array<f32>;
var<storage, read_write> scores: array<f32>;
var<storage, read_write> factors: array<vec4<f32>>;

override HEADS: u32;
override KEY_HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override EPS: f32;

const CHUNK = {{ CHUNK }}u;

{% include "states/snippets/delta_factors.wgsl" %}

var<workgroup> logs: array<f32, CHUNK>;       // log g, then G
var<workgroup> strengths: array<f32, CHUNK>;
var<workgroup> of_key: array<f32, CHUNK>;     // 1 / length
var<workgroup> of_query: array<f32, CHUNK>;
var<workgroup> system: array<f32, CHUNK * CHUNK>;
var<workgroup> inverse: array<f32, CHUNK * CHUNK>;

// Index of the first vector of a row's queries of a key head; keys follow KEY_HEADS KEY_DIM later.
fn first_of(row: u32, key_head: u32) -> u32 {
    return (row * (2u * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM) + key_head * KEY_DIM) / 4u;
}

fn phase(item: u32, row: u32, thread: Thread) {
    let head = item;
    let key_head = head / (HEADS / KEY_HEADS);
    let words = KEY_DIM / 4u;
    let keys_after = KEY_HEADS * KEY_DIM / 4u;
    let rows = min(CHUNK, current.rows - min(row, current.rows));
    let chunk = (row / CHUNK * HEADS + head) * CHUNK;

    // The first 2 CHUNK threads compute the lengths; the first CHUNK threads also the factors.
    if (thread.index < 2u * CHUNK) {
        let i = thread.index % CHUNK;
        let is_key = thread.index >= CHUNK;
        var sum = EPS;
        if (i < rows) {
            let first = first_of(row + i, key_head) + select(0u, keys_after, is_key);
            for (var d = 0u; d < words; d++) {
                let v = vec4<f32>(qkv[first + d]);
                sum += dot(v, v);
            }
        }
        if (is_key) {
            of_key[i] = inverseSqrt(sum);
        } else {
            of_query[i] = inverseSqrt(sum * f32(KEY_DIM));
            var log_g = 0.0;
            var b = 0.0;
            if (i < rows) {
                log_g = log_decay(row + i, head);
                b = write_strength(row + i, head);
            }
            logs[i] = log_g;
            strengths[i] = b;
        }
    }
    workgroupBarrier();
    var sum_of_logs = 0.0;
    if (thread.index < CHUNK) {
        for (var j = 0u; j <= thread.index; j++) {
            sum_of_logs += logs[j];
        }
    }
    workgroupBarrier();
    if (thread.index < CHUNK) {
        logs[thread.index] = sum_of_logs;
        factors[chunk + thread.index] =
            vec4<f32>(sum_of_logs, of_key[thread.index], of_query[thread.index], 0.0);
    }
    workgroupBarrier();

    // A thread computes 2 x 2 elements of both matrices.
    for (var tile = thread.index; tile < CHUNK * CHUNK / 4u; tile += WG) {
        let i = 2u * (tile / (CHUNK / 2u));
        let j = 2u * (tile % (CHUNK / 2u));
        var by_key = vec4<f32>(0.0);  // (i, j), (i, j + 1), (i + 1, j), (i + 1, j + 1)
        var by_query = vec4<f32>(0.0);
        if (j <= i + 1u && i < rows) {
            // Rows beyond the pass are replaced by its last row, and their results not used.
            let next_i = min(i + 1u, rows - 1u);
            let q0 = first_of(row + i, key_head);
            let q1 = first_of(row + next_i, key_head);
            let k0 = first_of(row + j, key_head) + keys_after;
            let k1 = first_of(row + min(j + 1u, rows - 1u), key_head) + keys_after;
            for (var d = 0u; d < words; d++) {
                let a0 = vec4<f32>(qkv[k0 + d]);
                let a1 = vec4<f32>(qkv[k1 + d]);
                let b0 = vec4<f32>(qkv[q0 + keys_after + d]);
                let b1 = vec4<f32>(qkv[q1 + keys_after + d]);
                by_key += vec4<f32>(dot(b0, a0), dot(b0, a1), dot(b1, a0), dot(b1, a1));
                let c0 = vec4<f32>(qkv[q0 + d]);
                let c1 = vec4<f32>(qkv[q1 + d]);
                by_query += vec4<f32>(dot(c0, a0), dot(c0, a1), dot(c1, a0), dot(c1, a1));
            }
        }
        for (var n = 0u; n < 4u; n++) {
            let own_i = i + n / 2u;
            let own_j = j + n % 2u;
            let is_inside = own_i < rows && own_j <= own_i;
            let factor = exp(min(logs[own_i] - logs[own_j], 0.0)) * of_key[own_j];
            let score = by_query[n] * factor * of_query[own_i];
            let coupled = by_key[n] * factor * of_key[own_i] * strengths[own_i];
            scores[(chunk + own_i) * CHUNK + own_j] = select(0.0, score, is_inside);
            system[own_i * CHUNK + own_j] = select(0.0, coupled, is_inside && own_j < own_i);
        }
    }
    workgroupBarrier();
    if (thread.index < CHUNK) {
        let j = thread.index;
        for (var i = 0u; i < CHUNK; i++) {
            var sum = select(0.0, 1.0, i == j);
            for (var l = j; l < i; l++) {
                sum -= system[i * CHUNK + l] * inverse[l * CHUNK + j];
            }
            inverse[i * CHUNK + j] = sum;
        }
    }
    workgroupBarrier();
    for (var at = thread.index; at < CHUNK * CHUNK; at += WG) {
        solved[chunk * CHUNK + at] = inverse[at] * strengths[at % CHUNK];
    }
}
