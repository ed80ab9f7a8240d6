{% if EXPERTS == "each" %}
// y[r, s, n] = sum_k x[r, k] W[e, n, k], where e is the s-th expert of row r.
{% elif EXPERTS == "sum" %}
// y[r, n] = sum_s w (sum_k x[r, s, k] W[e, n, k] (+ bias[e, n])) (+ y), where e is the s-th expert of row r and w {{ "1" if SCALED else "its
// routing weight" }}.
{% else %}
// y[r, FIRST + n] = sum_k x[r, k] W[n, k] (+ bias) (+ y).
{% endif %}
//
// current  Step, only if an item has several rows
// x        {{ VALUE }} {{ "[rows, TOP_K, K]" if EXPERTS == "sum" else "[rows, K]" }}
// weight0  OUTPUTS rows from row FIRST on, layout as in formats.py{% if EXPERTS %}; each expert has EXPERT_ROWS rows{% endif %}

// y        {{ Y }} {{ "[rows, TOP_K, N]" if EXPERTS == "each" else "[rows, N]" }}
{% if EXPERTS %}
// routes   Route [rows, TOP_K]
// bias     f32 [EXPERT_COUNT, N], only with BIAS
{% else %}
// bias     f32 [N], only with BIAS
{% endif %}
//
// An item is 4 outputs of {{ {"each": "one route of a row, the items of its first route first", "sum": "a row, summed over its routes"}.get(EXPERTS, ROWS ~ (" token rows" if ROWS > 1 else " token row")) }}. The threads share the units
// of K, so that each weight is read and dequantized once for an item. {% if EXPERTS %}Outputs whose weights are in
// another part are {{ "left unchanged" if EXPERTS == "each" else "omitted" }}. {% endif %}Accumulates in f32.
{% include "snippets/value.wgsl" %}
{% if ROWS > 1 %}
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
{% endif %}
var<storage, read> x: array<vec4<{{ VALUE }}>>;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> y: array<{{ Y }}>;
{% if EXPERTS %}
{% include "snippets/route.wgsl" %}

var<storage, read> routes: array<Route>;

override EXPERT_COUNT: u32;
override EXPERT_ROWS: u32;       // rows from one expert to the next
override TOP_K: u32;
{% endif %}
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}

override K: u32;
override UNITS: u32;             // half units (32 weights) of a row; the last may be incomplete
override K_PADDED: bool;         // whether the last of them reaches beyond K
override N: u32;                 // outputs of {{ "an expert" if EXPERTS else "all parts" }}
override FIRST: u32;             // index of this part's first row
override OUTPUTS: u32;           // rows of this part
override ACCUMULATE: bool;

{% if not FORMATS[0].values %}
{% set DEQUANTIZED = true %}
{% endif %}
{% include "weights/snippets/weights.wgsl" %}
{% include "snippets/reduce_sum.wgsl" %}

{# Adds this thread's share of the dot products of the vectors at x0, x1, ... with the rows w of the part
   to acc0, acc1, ... #}
{% set VALUES = FORMATS[0].values %}
{% set QUADS = 8 if not VALUES else 1 if VALUES == "f32" else 2 %}
{% macro quad(o, i) %}
{% if not VALUES %}
w{{ o }}[{{ i }}]
{%- elif VALUES == "f32" %}
bitcast<vec4<f32>>(w{{ o }})
{%- else %}
quad_{{ VALUES }}(w{{ o }}.{{ ["xy", "zw"][i] }})
{%- endif %}
{% endmacro %}
{% macro add_products() %}
    // The template unrolls these loops: naga adds a bound to every loop, and arrays that are indexed
    // by a variable are not kept in registers.
{% if VALUES %}
    // Consecutive threads read consecutive 16 bytes.
    for (var unit = thread.index; unit < min(UNITS * {{ 8 // QUADS }}u, ROW_UNITS0); unit += WG) {
{% for o in range(4) %}
        let w{{ o }} = weight0[unit_at0(w[{{ o }}], unit)];
{% endfor %}
{% else %}
    for (var unit = thread.index; unit < UNITS; unit += WG) {
{% for o in range(4) %}
        let w{{ o }} = weights0(w[{{ o }}], unit);
{% endfor %}
{% endif %}
{% for i in range(QUADS) %}
        let k{{ i }} = {{ 4 * QUADS }}u * unit + {{ 4 * i }}u;
        if (!K_PADDED || k{{ i }} < K) {
{% for o in range(4) %}
            let q{{ o }} = {{ quad(o, i) }};
{% endfor %}
{% for r in range(ROWS) %}
            let v{{ r }} = vec4<f32>(x[x{{ r }} + k{{ i }} / 4u]);
            acc{{ r }} += vec4<f32>({% for o in range(4) %}dot(q{{ o }}, v{{ r }}){{ ", " if o < 3 }}{% endfor %});
{% endfor %}
        }
{% endfor %}
    }
{% endmacro %}
const FOUR = vec4<u32>(0u, 1u, 2u, 3u);
{% if EXPERTS %}

// Which of the outputs n0 to n0 + 3 of an expert lie in this part.
fn inside(expert: u32, n0: u32) -> vec4<bool> {
    let n = vec4<u32>(n0) + FOUR;
    let row = vec4<u32>(expert * EXPERT_ROWS) + n;
    return (n < vec4<u32>(N)) & (row >= vec4<u32>(FIRST)) & (row < vec4<u32>(FIRST + OUTPUTS));
}

// Rows of these outputs within the part; an arbitrary row for an output outside of it.
fn rows_of(expert: u32, n0: u32) -> vec4<u32> {
    let row = vec4<u32>(expert * EXPERT_ROWS + n0) + FOUR;
    return clamp(row, vec4<u32>(FIRST), vec4<u32>(FIRST + OUTPUTS - 1u)) - vec4<u32>(FIRST);
}
{% else %}

// Store output n of a row, the lane-th output of the item.
fn finish(total: vec4<f32>, row: u32, n: u32, lane: u32) {
    if (lane >= 4u || n >= OUTPUTS{{ " || row >= current.rows" if ROWS > 1 }}) {
        return;
    }
    var result = total[lane];
{% if BIAS %}
    result += bias[FIRST + n];
{% endif %}
    let at = row * N + FIRST + n;
    if (ACCUMULATE) {
        result += f32(y[at]);
    }
    y[at] = {{ "value(result)" if Y == VALUE else "result" }};
}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
{% if EXPERTS == "each" %}
    let items = (N + 3u) / 4u;  // items of a route
    let n0 = item % items * 4u;
    let route = row * TOP_K + item / items;
    let expert = min(routes[route].expert, EXPERT_COUNT - 1u);
    let live = inside(expert, n0);
    if (!any(live)) {
        return;
    }
    let w = rows_of(expert, n0);
    let x0 = row * (K / 4u);
    var acc0 = vec4<f32>(0.0);
{{ add_products() -}}
    let total = reduce_sum(acc0, thread);
    if (thread.index < 4u && live[thread.index]) {
        y[route * N + n0 + thread.index] = value(total[thread.index]);
    }
{% elif EXPERTS == "sum" %}
    let n0 = item * 4u;
    var sum = vec4<f32>(0.0);
    for (var route = row * TOP_K; route < (row + 1u) * TOP_K; route++) {
        let expert = min(routes[route].expert, EXPERT_COUNT - 1u);
        let live = inside(expert, n0);
        if (any(live)) {
            let w = rows_of(expert, n0);
            let x0 = route * (K / 4u);
            var acc0 = vec4<f32>(0.0);
{{ add_products() -}}
{% if BIAS %}
            if (thread.index == 0u) {
                let at = min(vec4<u32>(expert * N + n0) + FOUR, vec4<u32>(EXPERT_COUNT * N - 1u));
                acc0 += vec4<f32>(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
            }
{% endif %}
            sum += {{ "" if SCALED else "routes[route].weight * " }}select(vec4<f32>(0.0), acc0, live);
        }
    }
    let total = reduce_sum(sum, thread);
    if (thread.index < 4u && n0 + thread.index < N) {
        let at = row * N + n0 + thread.index;
        let result = total[thread.index];
        y[at] = value(select(result, result + f32(y[at]), ACCUMULATE));
    }
{% else %}
    let n0 = item * 4u;
    let w = min(vec4<u32>(n0) + FOUR, vec4<u32>(OUTPUTS - 1u));
{% for r in range(ROWS) %}
    var acc{{ r }} = vec4<f32>(0.0);
    let x{{ r }} = {{ "min(row + " ~ r ~ "u, current.rows - 1u)" if r else "row" }} * (K / 4u);
{% endfor %}
{{ add_products() -}}
{% for r in range(ROWS) %}
    finish(reduce_sum(acc{{ r }}, thread), row + {{ r }}u, n0 + thread.index, thread.index);
{% endfor %}
{% endif %}
}
