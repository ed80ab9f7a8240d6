// One token of a layer with linear attention: short convolution, SiLU and gated delta rule.
//
//   u = projected queries, keys and values of the token
//   c[n] = silu(sum_j taps[n, j] u of slot - KERNEL + 1 + j, channel n): query, key and value
//   k = key / sqrt(|key|^2 + EPS), q = query / sqrt(KEY_DIM (|query|^2 + EPS))
//   g = exp(-exp(rate) softplus(decay + decay_bias)), b = sigmoid(strength)
//   w = b (value - g S^T k);  y = g S^T q + (q . k) w;  S = g S + k w^T, for each value head
//   squares[h, i] = sum of y^2 over the columns of item i of head h
//
// current    Step; no two rows belong to the same sequence. S is zero at slot 0, and u before slot 0.
// projected  {{ VALUE }} [rows, STRIDE]: a row begins with queries, keys and values; its strengths begin
//            at STRENGTH, its decays at DECAY
// taps       f32 [2 KEY_HEADS KEY_DIM + HEADS VALUE_DIM, KERNEL], then rates and decay biases, [2, HEADS]
// recent     f32 [sequences, KERNEL, channels]: the u of slot s is entry s mod KERNEL
// state      f32 [sequences, HEADS, KEY_DIM, VALUE_DIM]
// y          {{ VALUE }} [rows, HEADS, VALUE_DIM]
// squares    f32 [rows, HEADS, VALUE_DIM / {{ COLUMNS }}]
//
// An item is a value head and {{ COLUMNS }} of its columns, for one row. The channels of its query, key and values
// are convolved once and shared in workgroup memory. A thread keeps 4 columns of {{ STEPS }} rows of the state in
// registers. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> projected: array<{{ VALUE }}>;
var<storage, read> taps: array<f32>;
var<storage, read_write> recent: array<f32>;
var<storage, read_write> state: array<vec4<f32>>;
var<storage, read_write> y: array<{{ VALUE }}>;
var<storage, read_write> squares: array<f32>;

override HEADS: u32;
override KEY_HEADS: u32;
override KEY_DIM: u32;
override VALUE_DIM: u32;
override EPS: f32;
override KERNEL: u32;
override STRIDE: u32;    // elements of a row of `projected`
override STRENGTH: u32;
override DECAY: u32;

const QUADS = {{ COLUMNS // 4 }}u;  // vectors of 4 columns of an item
const LANES = {{ LANES }}u;  // threads that share such a vector
const COLUMNS = {{ COLUMNS }}u;
override CHANNELS = 2u * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM;

{% include "states/snippets/delta_gates.wgsl" %}

var<workgroup> mixed: array<f32, 2u * KEY_DIM + COLUMNS>;  // query, key, then the item's values
// Partial sums over the rows of the state: S^T k, S^T q and the products of q and k.
var<workgroup> partial: array<vec4<f32>, 3u * LANES * QUADS>;
var<workgroup> own_squares: array<f32, QUADS>;

// Channel `channel` after the convolution. If `keeps`, its u becomes an entry of `recent`, which no item of
// this phase reads: it held the u of slot - KERNEL.
fn convolved(row: u32, channel: u32, keeps: bool) -> f32 {
    let own = current.row[row];
    let first = own.sequence * KERNEL * CHANNELS + channel;
    let latest = f32(projected[row * STRIDE + channel]);
    var sum = latest * taps[channel * KERNEL + KERNEL - 1u];
    for (var back = 1u; back < min(KERNEL, own.slot + 1u); back++) {
        let entry = first + (own.slot - back) % KERNEL * CHANNELS;
        sum += recent[entry] * taps[channel * KERNEL + KERNEL - 1u - back];
    }
    if (keeps) {
        recent[first + own.slot % KERNEL * CHANNELS] = latest;
    }
    return sum / (1.0 + exp(-clamp(sum, -80.0, 80.0)));
}

fn phase(item: u32, row: u32, thread: Thread) {
    let blocks = VALUE_DIM / COLUMNS;
    let head = item / blocks;
    let block = item % blocks;
    let key_head = head / (HEADS / KEY_HEADS);
    // Several items share the channels of a key head; the first of them keeps their inputs.
    let is_first = block == 0u && head % (HEADS / KEY_HEADS) == 0u;
    let first_value = 2u * KEY_HEADS * KEY_DIM + head * VALUE_DIM + block * COLUMNS;
    for (var i = thread.index; i < 2u * KEY_DIM + COLUMNS; i += WG) {
        var channel = key_head * KEY_DIM + i;
        if (i >= 2u * KEY_DIM) {
            channel = first_value + i - 2u * KEY_DIM;
        } else if (i >= KEY_DIM) {
            channel = (KEY_HEADS + key_head) * KEY_DIM + i - KEY_DIM;
        }
        mixed[i] = convolved(row, channel, is_first || i >= 2u * KEY_DIM);
    }
    workgroupBarrier();
    let quad = thread.index % QUADS;
    let lane = thread.index / QUADS;
    let column = block * QUADS + quad;  // of the vectors of 4 columns of the head
    let own = current.row[row];
    let at = (own.sequence * HEADS + head) * KEY_DIM * (VALUE_DIM / 4u) + column;
    let known = own.slot > 0u;
    var by_key = vec4<f32>(0.0);
    var by_query = vec4<f32>(0.0);
    var products = vec4<f32>(0.0);
{% for i in range(STEPS) %}
    let s{{ i }} = select(vec4<f32>(0.0), state[at + (lane + {{ i }}u * LANES) * (VALUE_DIM / 4u)], known);
    let q{{ i }} = mixed[lane + {{ i }}u * LANES];
    let k{{ i }} = mixed[KEY_DIM + lane + {{ i }}u * LANES];
    by_key += s{{ i }} * k{{ i }};
    by_query += s{{ i }} * q{{ i }};
    products += vec4<f32>(k{{ i }} * k{{ i }}, q{{ i }} * q{{ i }}, q{{ i }} * k{{ i }}, 0.0);
{% endfor %}
    partial[thread.index] = by_key;
    partial[LANES * QUADS + thread.index] = by_query;
    partial[2u * LANES * QUADS + thread.index] = products;
    workgroupBarrier();
    by_key = vec4<f32>(0.0);
    by_query = vec4<f32>(0.0);
    products = vec4<f32>(0.0);
    for (var other = 0u; other < LANES; other++) {
        let from_lane = other * QUADS + quad;
        by_key += partial[from_lane];
        by_query += partial[from_lane + LANES * QUADS];
        products += partial[from_lane + 2u * LANES * QUADS];
    }
    let factor_k = inverseSqrt(products.x + EPS);
    let factor_q = inverseSqrt((products.y + EPS) * f32(KEY_DIM));
    let rates = CHANNELS * KERNEL;
    let decay = f32(projected[row * STRIDE + DECAY + head]) + taps[rates + HEADS + head];
    let g = exp(log_decay_of(decay, taps[rates + head]));
    let b = sigmoid(f32(projected[row * STRIDE + STRENGTH + head]));
    let value_at = 2u * KEY_DIM + 4u * quad;
    let v = vec4<f32>(
        mixed[value_at], mixed[value_at + 1u], mixed[value_at + 2u], mixed[value_at + 3u]
    );
    let w = b * (v - g * factor_k * by_key);
    if (lane == 0u) {
        let out = g * factor_q * by_query + factor_q * factor_k * products.z * w;
        let y_at = (row * HEADS + head) * VALUE_DIM + 4u * column;
        y[y_at] = value(out.x);
        y[y_at + 1u] = value(out.y);
        y[y_at + 2u] = value(out.z);
        y[y_at + 3u] = value(out.w);
        own_squares[quad] = dot(out, out);
    }
    let scaled = factor_k * w;
{% for i in range(STEPS) %}
    state[at + (lane + {{ i }}u * LANES) * (VALUE_DIM / 4u)] = g * s{{ i }} + k{{ i }} * scaled;
{% endfor %}
    workgroupBarrier();
    if (thread.index == 0u) {
        var sum = 0.0;
        for (var i = 0u; i < QUADS; i++) {
            sum += own_squares[i];
        }
        squares[(row * HEADS + head) * blocks + block] = sum;
    }
}
