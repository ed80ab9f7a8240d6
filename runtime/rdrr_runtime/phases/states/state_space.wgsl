// The selective state space of Mamba 2, row by row. For each head with its state S [STATE_DIM, HEAD_DIM]:
//
//   d = clamp(softplus(STEP_SCALE step + step_bias), LEAST_STEP, MOST_STEP), g = exp(-exp(rate) d)
//   S = g S + d B x^T;  y = S^T C + skip x
//
// current  Step; the rows of a sequence are consecutive and in slot order. S is zero at slot 0, and absorbs
//          only the rows that are kept (snippets/kept.wgsl).
// xbc      {{ VALUE }} [rows, HEADS HEAD_DIM + 2 GROUPS STATE_DIM]: x of the heads, B and C of the groups
// step     {{ VALUE }} [rows, HEADS]
// rates    f32 [3, HEADS]: rate, step_bias, skip
// state    f32 [sequences, HEADS, STATE_DIM, HEAD_DIM]
// y        {{ VALUE }} [rows, HEADS, HEAD_DIM]
//
// An item is a head and {{ COLUMNS }} of its columns, for ROWS rows from `row` on. A thread keeps 4 columns of
// {{ STEPS }} rows of the state in registers. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
var<storage, read> current: Step;
var<storage, read> xbc: array<{{ VALUE }}>;
var<storage, read> step: array<{{ VALUE }}>;
var<storage, read> rates: array<f32>;
var<storage, read_write> state: array<vec4<f32>>;
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;

override HEADS: u32;
override HEAD_DIM: u32;
override GROUPS: u32;
override STATE_DIM: u32;
override LEAST_STEP: f32;
override MOST_STEP: f32;
override STEP_SCALE: f32;
override ROWS: u32;

const QUADS = {{ COLUMNS // 4 }}u;  // vectors of 4 columns of an item
const LANES = {{ LANES }}u;  // threads that share such a vector

{% include "states/snippets/kept.wgsl" %}
{% include "states/snippets/state_space_step.wgsl" %}

var<workgroup> partial: array<vec4<f32>, 2u * LANES * QUADS>;  // partial sums of S^T C, of two rows in turn

fn phase(item: u32, row: u32, thread: Thread) {
    let blocks = HEAD_DIM / (4u * QUADS);
    let head = item / blocks;
    let quad = thread.index % QUADS;
    let lane = thread.index / QUADS;
    let column = (item % blocks) * QUADS + quad;  // of the vectors of 4 columns of the head
    let stride = HEADS * HEAD_DIM + 2u * GROUPS * STATE_DIM;
    let first_b = HEADS * HEAD_DIM + head / (HEADS / GROUPS) * STATE_DIM;
    let end = min(row + ROWS, current.rows);
    let last = min(end, kept_rows());
{% for i in range(STEPS) %}
    var s{{ i }}: vec4<f32>;
{% endfor %}
    for (var r = row; r < end; r++) {
        let own = current.row[r];
        let at = (own.sequence * HEADS + head) * STATE_DIM * (HEAD_DIM / 4u) + column;
        if (r == row || current.row[max(r, 1u) - 1u].sequence != own.sequence) {
            let known = own.slot > 0u;
{% for i in range(STEPS) %}
            s{{ i }} = select(vec4<f32>(0.0), state[at + (lane + {{ i }}u * LANES) * (HEAD_DIM / 4u)], known);
{% endfor %}
        }
        let length = step_length(r, head);
        let g = exp(log_decay(length, head));
        let x_at = r * stride + head * HEAD_DIM + 4u * column;
        let x = vec4<f32>(f32(xbc[x_at]), f32(xbc[x_at + 1u]), f32(xbc[x_at + 2u]), f32(xbc[x_at + 3u]));
        let write = length * x;
        let b_at = r * stride + first_b + lane;
        var sum = vec4<f32>(0.0);
{% for i in range(STEPS) %}
        s{{ i }} = g * s{{ i }} + f32(xbc[b_at + {{ i }}u * LANES]) * write;
        sum += f32(xbc[b_at + GROUPS * STATE_DIM + {{ i }}u * LANES]) * s{{ i }};
{% endfor %}
        // Threads may still be reading the sums of the row before, so rows take turns in two halves.
        let half = (r & 1u) * LANES * QUADS;
        partial[half + thread.index] = sum;
        workgroupBarrier();
        if (lane == 0u) {
            for (var other = 1u; other < LANES; other++) {
                sum += partial[half + other * QUADS + quad];
            }
            y[(r * HEADS + head) * (HEAD_DIM / 4u) + column] = value4(sum + rates[2u * HEADS + head] * x);
        }
        if (r + 1u == last || (r + 1u < last && current.row[r + 1u].sequence != own.sequence)) {
{% for i in range(STEPS) %}
            state[at + (lane + {{ i }}u * LANES) * (HEAD_DIM / 4u)] = s{{ i }};
{% endfor %}
        }
    }
}
