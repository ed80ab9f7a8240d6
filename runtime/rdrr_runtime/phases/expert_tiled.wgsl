// y[g, n] = sum_k x[{{ "g" if MODE == "route" else "r" }}, k] W[e, n, k] for every route g = r TOP_K + s of a row r to an expert e.
//
// current  Step
// groups   u32 [EXPERTS, 1 + MAX_ROWS]: routes of each expert, their number before them
// x        {{ VALUE }} {{ "[rows, TOP_K, K]" if MODE == "route" else "[rows, K]" }}
// weight0  this part's rows FIRST to FIRST + OUTPUTS - 1 of EXPERT_ROWS of each expert, one of FORMATS
// y        {{ VALUE }} [rows, TOP_K, N]
//
// A workgroup of 128 threads computes 32 routes of an expert by 64 outputs in steps of 32 inputs. The
// weights of a step are dequantized into workgroup memory, each once, x is staged beside them, and a
// thread multiplies 4 routes by 4 outputs. An output whose weights are in another part is left
// alone. Accumulates in f32.
{% include "snippets/step.wgsl" %}
{% include "snippets/value.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> groups: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<{{ VALUE }}>>;
@group(0) @binding(3) var<storage, read> weight0: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<{{ VALUE }}>;

override K: u32;
override N: u32;
override UNITS: u32;             // units of 32 weights in a row
override EXPERT_ROWS: u32;       // rows from one expert to the next
override OUTPUTS: u32;           // rows of this part
override FIRST: u32;             // of all rows, the first of them
override TOP_K: u32;
override MAX_ROWS: u32;

var<workgroup> tile_w: array<vec4<f32>, 512>;  // [32 inputs, 64 outputs / 4]
var<workgroup> tile_x: array<vec4<f32>, 256>;  // [32 inputs, 32 routes / 4]

{% set DEQUANTIZED = true %}
{% include "snippets/weights.wgsl" %}

// Row of the part that holds an output's weights; any of its rows where none does.
fn part_row(row: u32) -> u32 {
    return clamp(row, FIRST, FIRST + OUTPUTS - 1u) - FIRST;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let group = wid.y * (1u + MAX_ROWS);
    let count = select(0u, groups[group], current.rows > 0u);
    let n0 = wid.x * 64u;
    let m0 = wid.z * 32u;
    let row0 = wid.y * EXPERT_ROWS + n0;
    if (m0 >= count || row0 >= FIRST + OUTPUTS || row0 + 64u <= FIRST) {
        return;
    }
    let tn = thread % 16u;
    let tm = thread / 16u;
{% for m in range(4) %}
    var acc{{ m }} = vec4<f32>(0.0);
{% endfor %}
    // The first half of the threads stages weights, one row each; the other x, half a unit each.
    let j = thread % 64u;
    let weight_row = part_row(row0 + min(j, N - 1u - n0));
    let staged = groups[group + 1u + min(m0 + j % 32u, count - 1u)];
    let x_row = {{ "staged" if MODE == "route" else "(staged / TOP_K)" }} * K;
    for (var unit = 0u; unit < UNITS; unit++) {
        if (thread < 64u) {
            let w = weights0(weight_row, unit);
{% for i in range(8) %}
{% for c in range(4) %}
            tile_w[{{ (i * 4 + c) * 16 }}u + j / 4u][j % 4u] = w[{{ i }}][{{ c }}];
{% endfor %}
{% endfor %}
        } else {
{% for i in range(4) %}
            let k{{ i }} = 32u * unit + 16u * (j / 32u) + {{ 4 * i }}u;
            let inside{{ i }} = k{{ i }} < K;
            let v{{ i }} = vec4<f32>(x[(x_row + select(0u, k{{ i }}, inside{{ i }})) / 4u]);
{% for c in range(4) %}
            tile_x[(16u * (j / 32u) + {{ 4 * i + c }}u) * 8u + j % 32u / 4u][j % 4u] = select(0.0, v{{ i }}[{{ c }}], inside{{ i }});
{% endfor %}
{% endfor %}
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let w = tile_w[k * 16u + tn];
            let v = tile_x[k * 8u + tm];
{% for m in range(4) %}
            acc{{ m }} += v[{{ m }}] * w;
{% endfor %}
        }
        workgroupBarrier();
    }
{% for m in range(4) %}
    store(group, m0 + tm * 4u + {{ m }}u, count, n0 + tn * 4u, row0 + tn * 4u, acc{{ m }});
{% endfor %}
}

fn store(group: u32, m: u32, count: u32, n: u32, row: u32, sums: vec4<f32>) {
    if (m >= count) {
        return;
    }
    let at = groups[group + 1u + m] * N;
    for (var c = 0u; c < 4u; c++) {
        if (n + c < N && row + c >= FIRST && row + c < FIRST + OUTPUTS) {
            y[at + n + c] = value(sums[c]);
        }
    }
}
