{% set WORDS = 1 if MICRO == 4 else 2 %}
{% set SPLIT = 2 if MICRO == 8 and TILE_N == 64 else 1 %}
{% set LANES = TILE_N // (4 * WORDS) %}
// y = x W^T (+ bias) (+ y) for many token rows.
//
// current  Step
// x        {{ VALUE }} [rows, K]
// weight0  PART rows of one of FORMATS, see formats.py
// y        {{ Y }} [rows, N], N outputs of all parts
// bias     f32 [N], only with BIAS
{% if EXPERTS %}
// groups   u32 [experts, 1 + MAX_ROWS]: routes of each expert, their number before them
//
// Of experts, EXPERT_ROWS rows each, and y[g] = W[e] x[{{ "g" if EXPERTS == "route" else "r" }}] for each route
// g = r TOP_K + s of a row r to an expert e, whose routes make the rows of a tile. An output whose
// weights are in another part is left alone.
{% endif %}
//
// A workgroup of 128 threads computes {{ 8 * MICRO }} rows by {{ TILE_N }} outputs in steps of 32 inputs. The weights
// of a step are dequantized into workgroup memory, each once, and x is staged beside them, while
// a thread multiplies {{ MICRO }} rows by {{ 4 * WORDS }} outputs of the step before. Accumulates in f32.
{% if SPLIT == 2 %}
// Half of the threads take the first 16 inputs of each step, half the others; they add up at the
// end. So each has as many outputs as in a wider tile, and reads workgroup memory as seldom.
{% endif %}
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<{{ VALUE }}>>;
@group(0) @binding(2) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<{{ Y }}>;
{% if BIAS %}
@group(0) @binding(4) var<storage, read> bias: array<f32>;
{% endif %}

{% if EXPERTS %}
@group(0) @binding(4) var<storage, read> groups: array<u32>;

override TOP_K: u32;
override MAX_ROWS: u32;
override EXPERT_ROWS: u32;
{% endif %}

override K: u32;
override N: u32;
override UNITS: u32;             // steps of 32 inputs
override PART: u32;              // rows of this part
override FIRST: u32;             // output of the first of them
override ACCUMULATE: bool = false;
override SINGLE_ROW: bool = false;

const TILE_M = {{ 8 * MICRO }}u;

var<workgroup> tile_w: array<vec4<f32>, {{ 8 * TILE_N }}>;   // [32 inputs, {{ TILE_N }} outputs / 4]
var<workgroup> tile_x: array<vec4<f32>, {{ 64 * MICRO }}>;   // [32 inputs, TILE_M / 4]

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
{% if EXPERTS %}
    let group = wid.y * (1u + MAX_ROWS);
    let rows = select(0u, groups[group], current.rows > 0u);
    let m0 = wid.z * TILE_M;
    let n0 = wid.x * {{ TILE_N }}u;
    let first = wid.y * EXPERT_ROWS + n0;  // row of all parts that the tile begins with
    if (m0 >= rows || first >= FIRST + PART || first + {{ TILE_N }}u <= FIRST) {
        return;
    }
{% else %}
    let rows = select(current.rows, 1u, SINGLE_ROW);
    let m0 = wid.y * TILE_M;
    if (m0 >= rows) {
        return;
    }
{% endif %}
{% if SPLIT == 2 %}
    let share = thread / 64u;
{% endif %}
    let tn = thread % {{ LANES }}u;
    let tm = (thread / {{ LANES }}u) % 8u;
{% for m in range(MICRO) %}
{% for j in range(WORDS) %}
    var acc{{ m }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    let j = thread % {{ TILE_N }}u;
    let m = thread % TILE_M;
{% if EXPERTS %}
    let row = groups[group + 1u + min(m0 + m, rows - 1u)]{{ " / TOP_K" if EXPERTS == "row" }};
    let w_row = clamp(first + min(j, N - 1u - n0), FIRST, FIRST + PART - 1u) - FIRST;
{% else %}
    let row = min(m0 + m, rows - 1u);
    let w_row = min(wid.x * {{ TILE_N }}u + j, PART - 1u);
{% endif %}
    var w_next = weights0(w_row, 0u);
    let half = min(thread / TILE_M, 1u);
    var x_next = fetch_x(0u, row, half);
    // Unrolled by the template: indices that are no constants keep arrays out of registers.
    for (var s = 0u; s < UNITS; s++) {
{% if TILE_N < 128 %}
        if (thread < {{ TILE_N }}u) {
            put_weights(j, w_next);
        }
{% else %}
        put_weights(j, w_next);
{% endif %}
        if (thread < 2u * TILE_M) {
            put_x(m, half, x_next);
        }
        workgroupBarrier();
        let next = min(s + 1u, UNITS - 1u);
        w_next = weights0(w_row, next);
        x_next = fetch_x(next, row, half);
{% if SPLIT == 2 %}
        for (var k = share * 16u; k < share * 16u + 16u; k += 4u) {
{% else %}
        for (var k = 0u; k < 32u; k += 4u) {
{% endif %}
{% for k in range(4) %}
{% for j in range(WORDS) %}
            let w{{ k }}_{{ j }} = tile_w[(k + {{ k }}u) * {{ TILE_N // 4 }}u + {{ LANES * j }}u + tn];
{% endfor %}
{% for v in range(MICRO // 4) %}
            let x{{ k }}_{{ v }} = tile_x[((k + {{ k }}u) * 8u + tm) * {{ MICRO // 4 }}u + {{ v }}u];
{% for c in range(4) %}
{% for j in range(WORDS) %}
            acc{{ 4 * v + c }}_{{ j }} += x{{ k }}_{{ v }}[{{ c }}] * w{{ k }}_{{ j }};
{% endfor %}
{% endfor %}
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();
    }
{% if SPLIT == 2 %}
{% for j in range(WORDS) %}
    if (share == 1u) {
{% for m in range(MICRO) %}
        tile_w[{{ m * 64 }}u + thread - 64u] = acc{{ m }}_{{ j }};
{% endfor %}
    }
    workgroupBarrier();
    if (share == 0u) {
{% for m in range(MICRO) %}
        acc{{ m }}_{{ j }} += tile_w[{{ m * 64 }}u + thread];
{% endfor %}
    }
    workgroupBarrier();
{% endfor %}
    if (share == 1u) {
        return;
    }
{% endif %}
{% for m in range(MICRO) %}
{% for j in range(WORDS) %}
{% if EXPERTS %}
    store4(group, m0 + tm * {{ MICRO }}u + {{ m }}u, rows, n0, first, {{ 4 * LANES * j }}u + tn * 4u, acc{{ m }}_{{ j }});
{% else %}
    store4(m0 + tm * {{ MICRO }}u + {{ m }}u, rows, wid.x, {{ 4 * LANES * j }}u + tn * 4u, acc{{ m }}_{{ j }});
{% endif %}
{% endfor %}
{% endfor %}
}

// Lanes beyond K hold weights other than zero in packages of other writers; they count for nothing
// because x is zero there.
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
{% for c in range(4) %}
    tile_w[{{ (i * 4 + c) * (TILE_N // 4) }}u + j / 4u][j % 4u] = w[{{ i }}][{{ c }}];
{% endfor %}
{% endfor %}
}

fn put_x(m: u32, half: u32, v: array<vec4<f32>, 4>) {
{% for i in range(4) %}
{% for c in range(4) %}
    tile_x[(16u * half + {{ i * 4 + c }}u) * (TILE_M / 4u) + m / 4u][m % 4u] = v[{{ i }}][{{ c }}];
{% endfor %}
{% endfor %}
}

{% if EXPERTS %}
fn store4(group: u32, m: u32, count: u32, n0: u32, first: u32, j: u32, sums: vec4<f32>) {
    if (m >= count) {
        return;
    }
    let at = groups[group + 1u + m] * N + n0;
    for (var c = j; c < j + 4u; c++) {
        if (n0 + c < N && first + c >= FIRST && first + c < FIRST + PART) {
            y[at + c] = value(sums[c - j]);
        }
    }
}
{% else %}
fn store4(row: u32, rows: u32, tile: u32, j: u32, sums: vec4<f32>) {
    if (row >= rows) {
        return;
    }
    for (var c = 0u; c < 4u; c++) {
        let output = tile * {{ TILE_N }}u + j + c;
        if (output < PART) {
            store(row, FIRST + output, sums[c]);
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
