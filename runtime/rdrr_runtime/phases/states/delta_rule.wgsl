// The gated delta rule, row by row. For each value head with its state S [KEY_DIM, VALUE_DIM]:
//
//   k = key / sqrt(|key|^2 + EPS), q = query / sqrt(KEY_DIM (|query|^2 + EPS))
//   g = exp(-exp(rate) softplus(decay + decay_bias)), b = sigmoid(strength)
//   w = b (value - g S^T k);  y = g S^T q + (q . k) w;  S = g S + k w^T
//
// current          Step; the rows of a sequence are consecutive and in slot order. S is zero at slot 0,
//                  and absorbs only the rows that are kept (snippets/kept.wgsl).
// qkv              {{ VALUE }} [rows, 2 KEY_HEADS KEY_DIM + HEADS VALUE_DIM]: queries, keys, values
// decay, strength  {{ VALUE }} [rows, HEADS]
// rates            f32 [2, HEADS]: rate, decay_bias
// state            f32 [sequences, HEADS, KEY_DIM, VALUE_DIM]
// y                {{ VALUE }} [rows, HEADS, VALUE_DIM]
//
// An item is a value head and {{ COLUMNS }} of its columns, for ROWS rows from `row` on. A thread keeps 4 columns
// of {{ STEPS }} rows of the state in registers. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> qkv: array<{{ VALUE }}>;
var<storage, read> decay: array<{{ VALUE }}>;
var<storage, read> strength: array<{{ VALUE }}>;
var<storage, read> rates: array<f32>;
var<storage, read_write> state: array<vec4<f32>>;
var<storage, read_write> y: array<{{ VALUE }}>;

override HEADS: u32;
override KEY_HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override EPS: f32;
override ROWS: u32;

const QUADS = {{ COLUMNS // 4 }}u;  // vectors of 4 columns of an item
const LANES = {{ LANES }}u;  // threads that share such a vector

{% include "states/snippets/kept.wgsl" %}
{% include "states/snippets/delta_factors.wgsl" %}

// Partial sums over the rows of the state: S^T k, S^T q and the products of q and k, of two rows in turn.
var<workgroup> partial: array<vec4<f32>, 6u * LANES * QUADS>;

fn phase(item: u32, row: u32, thread: Thread) {
    let blocks = VALUE_DIM / (4u * QUADS);
    let head = item / blocks;
    let quad = thread.index % QUADS;
    let lane = thread.index / QUADS;
    let column = (item % blocks) * QUADS + quad;  // of the vectors of 4 columns of the head
    let stride = 2u * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM;
    let first_q = head / (HEADS / KEY_HEADS) * KEY_DIM;
    let end = min(row + ROWS, current.rows);
    let last = min(end, kept_rows());
{% for i in range(STEPS) %}
    var s{{ i }}: vec4<f32>;
{% endfor %}
    for (var r = row; r < end; r++) {
        let own = current.row[r];
        let at = (own.sequence * HEADS + head) * KEY_DIM * (VALUE_DIM / 4u) + column;
        if (r == row || current.row[max(r, 1u) - 1u].sequence != own.sequence) {
            let known = own.slot > 0u;
{% for i in range(STEPS) %}
            s{{ i }} = select(vec4<f32>(0.0), state[at + (lane + {{ i }}u * LANES) * (VALUE_DIM / 4u)], known);
{% endfor %}
        }
        let first = r * stride + first_q + lane;
        var by_key = vec4<f32>(0.0);
        var by_query = vec4<f32>(0.0);
        var products = vec4<f32>(0.0);
{% for i in range(STEPS) %}
        let q{{ i }} = f32(qkv[first + {{ i }}u * LANES]);
        let k{{ i }} = f32(qkv[first + {{ i }}u * LANES + KEY_HEADS * KEY_DIM]);
        by_key += s{{ i }} * k{{ i }};
        by_query += s{{ i }} * q{{ i }};
        products += vec4<f32>(k{{ i }} * k{{ i }}, q{{ i }} * q{{ i }}, q{{ i }} * k{{ i }}, 0.0);
{% endfor %}
        // Threads may still be reading the sums of the row before, so rows take turns in two halves.
        let half = (r & 1u) * 3u * LANES * QUADS;
        partial[half + thread.index] = by_key;
        partial[half + LANES * QUADS + thread.index] = by_query;
        partial[half + 2u * LANES * QUADS + thread.index] = products;
        workgroupBarrier();
        by_key = vec4<f32>(0.0);
        by_query = vec4<f32>(0.0);
        products = vec4<f32>(0.0);
        for (var other = 0u; other < LANES; other++) {
            let from_lane = half + other * QUADS + quad;
            by_key += partial[from_lane];
            by_query += partial[from_lane + LANES * QUADS];
            products += partial[from_lane + 2u * LANES * QUADS];
        }
        let factor_k = inverseSqrt(products.x + EPS);
        let factor_q = inverseSqrt((products.y + EPS) * f32(KEY_DIM));
        let g = exp(log_decay(r, head));
        let value_at = r * stride + 2u * KEY_HEADS * KEY_DIM + head * VALUE_DIM + 4u * column;
        let v = vec4<f32>(
            f32(qkv[value_at]), f32(qkv[value_at + 1u]), f32(qkv[value_at + 2u]), f32(qkv[value_at + 3u])
        );
        let w = write_strength(r, head) * (v - g * factor_k * by_key);
        if (lane == 0u) {
            let out = g * factor_q * by_query + factor_q * factor_k * products.z * w;
            let y_at = (r * HEADS + head) * VALUE_DIM + 4u * column;
            y[y_at] = value(out.x);
            y[y_at + 1u] = value(out.y);
            y[y_at + 2u] = value(out.z);
            y[y_at + 3u] = value(out.w);
        }
        let scaled = factor_k * w;
{% for i in range(STEPS) %}
        s{{ i }} = g * s{{ i }} + k{{ i }} * scaled;
{% endfor %}
        if (r + 1u == last || (r + 1u < last && current.row[r + 1u].sequence != own.sequence)) {
{% for i in range(STEPS) %}
            state[at + (lane + {{ i }}u * LANES) * (VALUE_DIM / 4u)] = s{{ i }};
{% endfor %}
        }
    }
}
