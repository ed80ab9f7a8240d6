{% set WORDS = 1 if MICRO == 4 else 2 %}
{% set SPLIT = 2 if MICRO == 8 and TILE_N == 64 else 1 %}
{% set LANES = TILE_N // (4 * WORDS) %}
// y = x W^T (+ bias) (+ y) for many token rows, multiplied in f32.
//
// current  Step, not with experts nor for a single row
// x        {{ VALUE }} [rows, K]
// weight0  OUTPUTS rows from row FIRST on, layout as in formats.py
// y        {{ Y }} [rows, N], N being the outputs of all parts
// bias     f32 [N], only with BIAS
{% if EXPERTS %}
// groups   u32 [experts, 1 + MAX_ROWS]: the number of routes of each expert, followed by its routes
//
// The matrix is a stack of experts of EXPERT_ROWS rows each: y[g] = W[e] x[{{ "g" if EXPERTS == "route" else "r" }}] for each route
// g = r TOP_K + s of a row r to an expert e. The rows of a tile are routes of one expert. Outputs
// whose weights are in another part are left unchanged.
{% endif %}
//
// An item is a tile of {{ 8 * MICRO }} rows by {{ TILE_N }} outputs{{ ", the items of the first expert first" if EXPERTS }}. In steps of 32 inputs, 128 threads
// store x and the weights, dequantized once, in workgroup memory. Then each thread multiplies {{ MICRO }} rows by
// {{ 4 * WORDS }} outputs, {{ LANES }} apart, while the loads of the next step are in flight. Accumulates in f32.
{% if SPLIT == 2 %}
// One half of the threads multiplies the first 16 inputs of each step, the other half the last 16, and
// their sums are added at the end. So each thread has as many outputs as in a wider tile, and as few
// reads of workgroup memory for each of them.
{% endif %}
{% include "snippets/value.wgsl" %}
{% if not (EXPERTS or SINGLE_ROW) %}
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
{% endif %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> y: array<{{ Y }}>;
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}
{% if EXPERTS %}
var<storage, read> groups: array<u32>;

override TOP_K: u32;
override MAX_ROWS: u32;
override EXPERT_ROWS: u32;
{% endif %}

override K: u32;
override UNITS: u32;             // steps of 32 inputs
override N: u32;                 // outputs of {{ "an expert" if EXPERTS else "all parts" }}
override FIRST: u32;             // index of this part's first row
override OUTPUTS: u32;           // rows of this part
override ACCUMULATE: bool;

const TILE_M = {{ 8 * MICRO }}u;

// A vector holds 4 inputs of one output or one row, so that one thread writes all of it: a write to one
// component may rewrite the others and so undo what other threads write there.
var<workgroup> tile_w: array<vec4<f32>, {{ 8 * TILE_N }}>;   // [32 inputs / 4, {{ TILE_N }} outputs]
var<workgroup> tile_x: array<vec4<f32>, {{ 64 * MICRO }}>;   // [32 inputs / 4, TILE_M]

{% set DEQUANTIZED = true %}
{% include "weights/snippets/weights.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
{% if EXPERTS %}
    let tiles = (N + {{ TILE_N - 1 }}u) / {{ TILE_N }}u;  // tiles along the outputs of an expert
    let expert = item / tiles;
    let group = expert * (1u + MAX_ROWS);
    let rows = groups[group];
    let n0 = item % tiles * {{ TILE_N }}u;
    let first = expert * EXPERT_ROWS + n0;  // first row of the tile in the whole stack
    if (row >= rows || first >= FIRST + OUTPUTS || first + {{ TILE_N }}u <= FIRST) {
        return;
    }
{% else %}
    let rows = {{ "1u" if SINGLE_ROW else "current.rows" }};
    let n0 = item * {{ TILE_N }}u;
{% endif %}
    let t = thread.index;
{% if SPLIT == 2 %}
    let split = t / 64u;
{% endif %}
    let tn = t % {{ LANES }}u;
    let tm = (t / {{ LANES }}u) % 8u;
{% for m in range(MICRO) %}
{% for j in range(WORDS) %}
    var acc{{ m }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    let j = t % {{ TILE_N }}u;
    let m = t % TILE_M;
{% if EXPERTS %}
    let x_row = groups[group + 1u + min(row + m, rows - 1u)]{{ " / TOP_K" if EXPERTS == "row" }};
    let w_row = clamp(first + min(j, N - 1u - n0), FIRST, FIRST + OUTPUTS - 1u) - FIRST;
{% else %}
    let x_row = min(row + m, rows - 1u);
    let w_row = min(n0 + j, OUTPUTS - 1u);
{% endif %}
{% if SKIPS %}
    let has_rows = row + tm * {{ MICRO }}u < rows;
{% endif %}
    var w_next = weights0(w_row, 0u);
    let half = min(t / TILE_M, 1u);
    var x_next = fetch_x(0u, x_row, half);
    // The template unrolls these loops: arrays that are indexed by a variable are not kept in registers.
    for (var s = 0u; s < UNITS; s++) {
{% if TILE_N < 128 %}
        if (t < {{ TILE_N }}u) {
            put_weights(j, w_next);
        }
{% else %}
        put_weights(j, w_next);
{% endif %}
        if (t < 2u * TILE_M) {
            put_x(m, half, x_next);
        }
        workgroupBarrier();
        let next = min(s + 1u, UNITS - 1u);
        w_next = weights0(w_row, next);
        x_next = fetch_x(next, x_row, half);
{% if SKIPS %}
        // The rows of a pass, or of an expert, often end within a tile: a thread without rows only loads.
        if (has_rows) {
{% else %}
        {
{% endif %}
{% if SPLIT == 2 %}
            for (var k = split * 4u; k < split * 4u + 4u; k++) {
{% else %}
            for (var k = 0u; k < 8u; k++) {
{% endif %}
{% for j in range(WORDS) %}
{% for c in range(4) %}
                let w{{ j }}_{{ c }} = tile_w[k * {{ TILE_N }}u + {{ LANES * (4 * j + c) }}u + tn];
{% endfor %}
{% endfor %}
{% for m in range(MICRO) %}
                let x{{ m }} = tile_x[k * TILE_M + tm * {{ MICRO }}u + {{ m }}u];
{% endfor %}
{% for i in range(4) %}
{% for j in range(WORDS) %}
                let v{{ i }}_{{ j }} = vec4<f32>(w{{ j }}_0[{{ i }}], w{{ j }}_1[{{ i }}], w{{ j }}_2[{{ i }}], w{{ j }}_3[{{ i }}]);
{% for m in range(MICRO) %}
                acc{{ m }}_{{ j }} += x{{ m }}[{{ i }}] * v{{ i }}_{{ j }};
{% endfor %}
{% endfor %}
{% endfor %}
            }
        }
        workgroupBarrier();
    }
{% if SPLIT == 2 %}
{% for j in range(WORDS) %}
    if (split == 1u) {
{% for m in range(MICRO) %}
        tile_w[{{ m * 64 }}u + t - 64u] = acc{{ m }}_{{ j }};
{% endfor %}
    }
    workgroupBarrier();
    if (split == 0u) {
{% for m in range(MICRO) %}
        acc{{ m }}_{{ j }} += tile_w[{{ m * 64 }}u + t];
{% endfor %}
    }
    workgroupBarrier();
{% endfor %}
    if (split == 1u) {
        return;
    }
{% endif %}
{% for m in range(MICRO) %}
{% for j in range(WORDS) %}
{% if EXPERTS %}
    store4(group, row + tm * {{ MICRO }}u + {{ m }}u, rows, n0, first, {{ 4 * LANES * j }}u + tn, acc{{ m }}_{{ j }});
{% else %}
    store4(row + tm * {{ MICRO }}u + {{ m }}u, rows, n0, {{ 4 * LANES * j }}u + tn, acc{{ m }}_{{ j }});
{% endif %}
{% endfor %}
{% endfor %}
}

// Returns zeros beyond K. There the padding of a matrix need not be zero in packages of other writers,
// and the zeros of x keep it out of the sums.
fn fetch_x(step: u32, row: u32, half: u32) -> array<vec4<f32>, 4> {
    var v: array<vec4<f32>, 4>;
{% for i in range(4) %}
    let k{{ i }} = 32u * step + 16u * half + {{ 4 * i }}u;
    let inside{{ i }} = k{{ i }} < K;
    let v{{ i }} = vec4<f32>(x[(row * K + select(0u, k{{ i }}, inside{{ i }})) / 4u]);
    v[{{ i }}] = select(vec4<f32>(0.0), v{{ i }}, inside{{ i }});
{% endfor %}
    return v;
}

fn put_weights(j: u32, w: array<vec4<f32>, 8>) {
{% for i in range(8) %}
    tile_w[{{ i * TILE_N }}u + j] = w[{{ i }}];
{% endfor %}
}

fn put_x(m: u32, half: u32, v: array<vec4<f32>, 4>) {
{% for i in range(4) %}
    tile_x[(4u * half + {{ i }}u) * TILE_M + m] = v[{{ i }}];
{% endfor %}
}

// Store outputs j, j + {{ LANES }}, j + {{ 2 * LANES }} and j + {{ 3 * LANES }} of the tile.
{% if EXPERTS %}
fn store4(group: u32, m: u32, count: u32, n0: u32, first: u32, j: u32, sums: vec4<f32>) {
    if (m >= count) {
        return;
    }
    let at = groups[group + 1u + m] * N + n0;
    for (var i = 0u; i < 4u; i++) {
        let c = j + {{ LANES }}u * i;
        if (n0 + c < N && first + c >= FIRST && first + c < FIRST + OUTPUTS) {
            y[at + c] = value(sums[i]);
        }
    }
}
{% else %}
fn store4(row: u32, rows: u32, n0: u32, j: u32, sums: vec4<f32>) {
    if (row >= rows) {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        let output = n0 + j + {{ LANES }}u * i;
        if (output < OUTPUTS) {
            store(row, FIRST + output, sums[i]);
        }
    }
}

fn store(row: u32, n: u32, sum: f32) {
    var result = sum;
{% if BIAS %}
    result += bias[n];
{% endif %}
    if (ACCUMULATE) {
        result += f32(y[row * N + n]);
    }
    y[row * N + n] = {{ "value(result)" if Y == VALUE else "result" }};
}
{% endif %}
