// The gated delta rule chunk by chunk, with what delta_rule_chunks.wgsl has computed. For each value head
// with its state S, and each chunk of CHUNK rows:
//
//   W = solved (V - e^G (K S)), where K, V and Q are the rows' unit keys, values and scaled queries
//   Y = e^G (Q S) + scores W
//   S = e^G[last] S + (K e^(G[last] - G))^T W
//
// current         Step; all rows belong to one sequence, in slot order. S is zero at slot 0.
// qkv             {{ VALUE }} [rows, 2 KEY_HEADS KEY_DIM + HEADS VALUE_DIM]: queries, keys, values
// solved, scores  f32 [chunks, HEADS, CHUNK, CHUNK]
// factors         f32 [chunks, HEADS, CHUNK, 4]
// state           f32 [sequences, HEADS, KEY_DIM, VALUE_DIM]
// y               {{ VALUE }} [rows, HEADS, VALUE_DIM]
//
// An item is a value head and {{ COLUMNS }} of its columns. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> qkv: array<vec4<{{ VALUE }}>>;
var<storage, read> solved: array<f32>;
var<storage, read> scores: array<f32>;
var<storage, read> factors: array<vec4<f32>>;
var<storage, read_write> state: array<vec4<f32>>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override KEY_HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;

const CHUNK = {{ CHUNK }}u;
const QUADS = {{ COLUMNS // 4 }}u;  // vectors of 4 columns of an item; WG = CHUNK QUADS

var<workgroup> held: array<vec4<f32>, {{ KEY_DIM }}u * QUADS>;  // the columns of S
var<workgroup> errors: array<vec4<f32>, CHUNK * QUADS>;         // V - e^G (K S)
var<workgroup> writes: array<vec4<f32>, CHUNK * QUADS>;         // W

fn phase(item: u32, thread: Thread) {
    let blocks = VALUE_DIM / (4u * QUADS);
    let head = item / blocks;
    let key_head = head / (HEADS / KEY_HEADS);
    let quad = thread.index % QUADS;
    let i = thread.index / QUADS;
    let column = (item % blocks) * QUADS + quad;
    let words = KEY_DIM / 4u;
    let stride = (2u * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM) / 4u;
    let start = current.row[0];
    let at = (start.sequence * HEADS + head) * KEY_DIM * (VALUE_DIM / 4u) + column;
    for (var d = i; d < KEY_DIM; d += CHUNK) {
        held[d * QUADS + quad] = select(vec4<f32>(0.0), state[at + d * (VALUE_DIM / 4u)], start.slot > 0u);
    }
    workgroupBarrier();
    for (var first = 0u; first < current.rows; first += CHUNK) {
        let chunk = (first / CHUNK * HEADS + head) * CHUNK;
        let is_row = first + i < current.rows;
        let factor = factors[chunk + i];
        let grown = exp(factor.x);
        let own = (first + i) * stride;
        let key_at = own + (KEY_HEADS + key_head) * words;
        var by_key = vec4<f32>(0.0);
        var by_query = vec4<f32>(0.0);
        var error = vec4<f32>(0.0);
        if (is_row) {
            for (var d = 0u; d < words; d++) {
                let k = vec4<f32>(qkv[key_at + d]);
                let q = vec4<f32>(qkv[own + key_head * words + d]);
                for (var n = 0u; n < 4u; n++) {
                    let s = held[(4u * d + n) * QUADS + quad];
                    by_key += k[n] * s;
                    by_query += q[n] * s;
                }
            }
            error = vec4<f32>(qkv[own + (2u * KEY_HEADS * words) + head * (VALUE_DIM / 4u) + column])
                - grown * factor.y * by_key;
        }
        errors[thread.index] = error;
        workgroupBarrier();
        var write = vec4<f32>(0.0);
        for (var j = 0u; j <= i; j++) {
            write += solved[(chunk + i) * CHUNK + j] * errors[j * QUADS + quad];
        }
        writes[thread.index] = write;
        workgroupBarrier();
        var out = grown * factor.z * by_query;
        for (var j = 0u; j <= i; j++) {
            out += scores[(chunk + i) * CHUNK + j] * writes[j * QUADS + quad];
        }
        if (is_row) {
            y[(first + i) * HEADS * (VALUE_DIM / 4u) + head * (VALUE_DIM / 4u) + column] = value4(out);
        }
        let whole = factors[chunk + CHUNK - 1u].x;
        let rows = min(CHUNK, current.rows - first);
        for (var d = i; d < KEY_DIM; d += CHUNK) {
            var s = exp(whole) * held[d * QUADS + quad];
            for (var j = 0u; j < rows; j++) {
                let of_row = factors[chunk + j];
                let k_at = (first + j) * stride + (KEY_HEADS + key_head) * words + d / 4u;
                let k = f32(qkv[k_at][d % 4u]) * of_row.y * exp(whole - of_row.x);
                s += k * writes[j * QUADS + quad];
            }
            held[d * QUADS + quad] = s;
        }
        workgroupBarrier();
    }
    for (var d = i; d < KEY_DIM; d += CHUNK) {
        state[at + d * (VALUE_DIM / 4u)] = held[d * QUADS + quad];
    }
}
