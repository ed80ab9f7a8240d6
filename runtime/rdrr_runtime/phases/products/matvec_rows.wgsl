{% if EXPERTS == "each" %}
// Int8 product of a small batch with its experts: y[r, s, n] = f(v), v = sum_k W[e, n, k] x[r, k] (+ bias[e, n]),
// where e is the s-th expert of row r{{ ", whose input is multiplied by the routing weight" if SCALED }}.
{% elif EXPERTS == "sum" %}
// Int8 product of a small batch with its experts: y[r, n] = f(v),
// v = sum_s w (sum_k W[e, n, k] x[r, s, k] (+ bias[e, n])), where e is the s-th expert of row r and w {{ "1" if SCALED else "its
// routing weight" }}.
{% else %}
// Int8 product of a small batch of token rows with one or several matrices, reading each weight once:
// y[r, n] = f(v), v = sum_k W[n, k] x[r, k].
{% endif %}
//
// f    store    y[r, n] = v[r, n] (+ bias[n]); each matrix has its own y, or all matrices or parts share one, side by side
//      add      y[r, n] += v[r, n] (+ bias[n])
//      gate     y[r, n] = activate(v_gate[r, n]) v_up[r, n]; gate and up are one matrix of 2 N rows or two of N
//      activate y[r, n] = activate(v[r, n]), only with experts
{% if WIDTH %}
//               quantized to int8 as quantize_small_batch does{{ ", with a scale for each 16" if HALVES_OUT }}; an item has whole groups of 32 outputs
{% endif %}
//
// current  Step, only without experts
// x        vec4<u32> {{ "[rows, TOP_K, 5, UNITS]" if EXPERTS == "sum" else "[rows, 5, UNITS]" }}, written by quantize_small_batch: for each unit of 64 inputs four
//          vectors of 16 codes, then {{ "the scale of each 16" if HALVES else "(scale, scale times the sum of the codes) of each half" }} as f32
// gain     f32 [K], where x is f32 [rows, K], which is normalised and quantized as it is staged
// weight   one buffer for each matrix, blocks along K, layout as in formats.py{% if EXPERTS %}; EXPERT_COUNT experts of N rows{% endif %}

// y        {{ "u32 [rows, 5, N / 64, 4]" if WIDTH else "f32 [rows, TOP_K, N]" if EXPERTS == "each" else "f32 [rows, N]" }}
{% if EXPERTS %}
// routes   Route [rows, TOP_K]
// bias     f32 [EXPERT_COUNT, N], only with BIAS; for gate those of all gates, then those of all ups
{% else %}
// bias     f32, one for each output of all matrices, only with BIAS
{% endif %}
//
// A team of {{ T }} threads computes {{ OUTPUTS }} output{{ "s" if OUTPUTS > 1 }} for {{ ROWS }} row{{ "s" if ROWS > 1 }} at a time. Each thread keeps the codes of 64 weights
// of every output in registers and multiplies them by the inputs of every row, so that each weight is
// read once for {{ "these rows" if ROWS > 1 else "an item" }}. The products of up to 32 inputs are summed exactly in i32; then it accumulates
// in f32.{% if GROUPS > 1 %} {{ GROUPS }} groups of teams compute the same outputs for {{ ROWS }} rows each, and all but the first of them find the
// weights in the cache.{% endif %} An item is the outputs of all teams,
// {{ {"each": "the items of the first route of a row first", "sum": "summed over the routes of a row"}.get(EXPERTS, "the items of the first matrix first") }}.{{ " A workgroup computes every STRIDE-th." if LOOPED }}
{% set MATRICES = FORMATS | length %}
{% set SOURCE = "staged" if STAGED else "x" %}
{% set GATE = KIND == "gate" %}
{% set TARGETS = 1 if GATE else MATRICES %}
{% set PER_TEAM = OUTPUTS // 2 if GATE else OUTPUTS %}
{% set ITEM = "tile" if EXPERTS == "each" else "item" %}
{% set ALL_ROWS = ROWS * GROUPS %}
{% set PART = "PART" if STAGED > 1 else "UNITS" %}
{% set GROUP_ROW = "group_row + " if GROUPS > 1 else "" %}
{% if EXPERTS %}
{% include "snippets/route.wgsl" %}

var<storage, read> routes: array<Route>;
{% else %}
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
{% endif %}
var<storage, read> x: array<vec4<{{ "f32" if NORM else "u32" }}>>;
{% if NORM %}
var<storage, read> gain: array<vec4<f32>>;
{% endif %}
{% for F in FORMATS %}
var<storage, read> weight{{ loop.index0 }}: array<vec4<u32>>;
{% endfor %}
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}
{% for s in range(1 if CONCATENATED else TARGETS) %}
var<storage, read_write> y{{ s }}: array<{{ "u32" if WIDTH else "f32" }}>;
{% endfor %}

override UNITS: u32;             // units of 64 inputs, zero padding after K included
{% if LOOPED %}
override STRIDE: u32;            // number of workgroups
override STEPS: u32;             // items of each workgroup
{% endif %}
{% for F in FORMATS %}
override N{{ loop.index0 }}: u32;
override FIRST{{ loop.index0 }}: u32;        // first item of the matrix
{% if not EXPERTS and not GATE %}
override BEFORE{{ loop.index0 }}: u32;       // outputs before those of the matrix
{% endif %}
{% endfor %}
{% if CONCATENATED %}
override Y_STRIDE: u32;          // outputs of a row of y
{% endif %}
{% if EXPERTS %}
override EXPERT_COUNT: u32;
override TOP_K: u32;
{% endif %}
{% include "weights/snippets/weights.wgsl" %}
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% include "products/snippets/unit.wgsl" %}

{% endfor %}
override TEAMS = WG / {{ T * GROUPS }}u;{{ "  // of a group" if GROUPS > 1 }}
{% if GATE %}
override OUTPUT_ROWS = N0{% if MATRICES == 1 %} / 2u{% endif %};
{% endif %}

{% if ACT %}
{% include "snippets/activate.wgsl" %}

{% endif %}
alias Sums = {{ "f32" if OUTPUTS == 1 else "vec" ~ OUTPUTS ~ "<f32>" }};
var<workgroup> partial: array<Sums, WG>;
{% if WIDTH %}
var<workgroup> gated: array<f32, {{ ALL_ROWS * WIDTH }}>;  // [rows, {{ WIDTH }} outputs]
{% endif %}

{% include "products/snippets/int8_dot.wgsl" %}
{% if STAGED %}
{% include "products/snippets/stage_rows.wgsl" %}
{% endif %}

{% macro fetch(s, o, unit) %}
{% if GATE %}
{% set m = 0 if MATRICES == 1 else o % 2 %}
{% set pair = "min(first + " ~ o // 2 ~ "u, OUTPUT_ROWS - 1u)" %}
unit{{ m }}({{ "expert * N0 + " if EXPERTS }}{{ "OUTPUT_ROWS + " if o % 2 and MATRICES == 1 }}{{ pair }}, {{ unit }})
{%- else %}
unit{{ s }}({{ "expert * N0 + " if EXPERTS }}min(first + {{ o }}u, N{{ s }} - 1u), {{ unit }})
{%- endif %}
{%- endmacro %}

fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32) {
{% if NORM %}
    stage(row, thread, subgroup_size);
{% elif STAGED == 1 %}
    stage(row, 0u, thread.index);
{% endif %}
{% if LOOPED %}
    for (var step = 0u; step < STEPS; step++) {
        compute_item(step * STRIDE + item, row, thread, subgroup_size);
{% if T > LANES or WIDTH %}
        workgroupBarrier();  // until all threads have read what the next item overwrites
{% endif %}
    }
{% else %}
    compute_item(item, row, thread, subgroup_size);
{% endif %}
}

fn compute_item(item: u32, row: u32, thread: Thread, subgroup_size: u32) {
    var at = thread.index;
{% if SUBGROUPS %}
    if (subgroup_size >= {{ LANES }}u) {
        at = thread.subgroup * subgroup_size + thread.lane;
    }
{% endif %}
    let team_of_all = at / {{ T }}u;
    let lane = at % {{ T }}u;
    let team = team_of_all{{ " % TEAMS" if GROUPS > 1 }};
{% if GROUPS > 1 %}
    let group_row = {{ ROWS }}u * (team_of_all / TEAMS);
{% endif %}
{% for r in range(ROWS) %}
    var acc{{ r }} = Sums();
{% endfor %}
{% if EARLY %}
    let old_row = min(row + {{ GROUP_ROW }}lane * {{ ROWS }}u / {{ T }}u, current.rows - 1u) * {{ "Y_STRIDE + BEFORE0" if CONCATENATED else "N0" }};
{% for o in range(OUTPUTS) %}
    let old{{ o }} = y0[old_row + min((item * TEAMS + team) * {{ OUTPUTS }}u + {{ o }}u, N0 - 1u)];
{% endfor %}
{% endif %}
{% if EXPERTS == "each" %}
    let outputs = TEAMS * {{ PER_TEAM }}u;
    let tiles = ({{ "OUTPUT_ROWS" if GATE else "N0" }} + outputs - 1u) / outputs;  // tiles of a route
    let tile = item % tiles;
    let route = row * TOP_K + item / tiles;
    let expert = min(routes[route].expert, EXPERT_COUNT - 1u);
{% endif %}
{% for s in range(TARGETS) %}
    if ({{ ITEM }} >= FIRST{{ s }}{{ " && item < FIRST" ~ (s + 1) if s + 1 < TARGETS }}) {
        let first = (({{ ITEM }} - FIRST{{ s }}) * TEAMS + team) * {{ PER_TEAM }}u;
{% if AHEAD %}
        let begin = min(lane, UNITS - 1u);
{% for o in range(OUTPUTS) %}
        var next{{ o }} = {{ fetch(s, o, "begin") }};
{% endfor %}
{% endif %}
{% if EXPERTS == "sum" %}
        for (var i = lane; i < TOP_K * UNITS; i += {{ T }}u) {
            let route = row * TOP_K + i / UNITS;
            let unit = i % UNITS;
            let expert = min(routes[route].expert, EXPERT_COUNT - 1u);
            var of_route = Sums();
{% else %}
{% if STAGED > 1 %}
        for (var first_unit = 0u; first_unit < UNITS; first_unit += PART) {
        workgroupBarrier();
        stage(row, first_unit, thread.index);
        for (var unit = first_unit + lane; unit < min(first_unit + PART, UNITS); unit += {{ T }}u) {
{% else %}
        for (var unit = lane; unit < UNITS; unit += {{ T }}u) {
{% endif %}
{% endif %}
{% for o in range(OUTPUTS) %}
{% set m = o % 2 if GATE and MATRICES == 2 else s %}
            let raw{{ m }}_{{ o }} = {{ "next" ~ o if AHEAD else fetch(s, o, "unit") }};
{% endfor %}
{% if AHEAD %}
            let next = min(unit + {{ T }}u, UNITS - 1u);
{% for o in range(OUTPUTS) %}
            next{{ o }} = {{ fetch(s, o, "next") }};
{% endfor %}
{% endif %}
{% for o in range(OUTPUTS) %}
{% set m = o % 2 if GATE and MATRICES == 2 else s %}
{% include "products/snippets/row_registers.wgsl" %}
{% endfor %}
{% for r in range(ROWS) %}
            {
{% if STAGED %}
                let at_unit = ({{ GROUP_ROW }}{{ r }}u) * 5u * {{ PART }} + unit{{ " - first_unit" if STAGED > 1 }};
{% else %}
                let at_unit = {{ "route" if EXPERTS == "sum" else "(row + " ~ GROUP_ROW ~ r ~ "u)" }} * 5u * UNITS + unit;
{% endif %}
{% for i in range(4) %}
                let c{{ i }} = {{ SOURCE }}[at_unit + {{ i }}u * {{ PART }}];
{% endfor %}
                let scale = bitcast<vec4<f32>>({{ SOURCE }}[at_unit + 4u * {{ PART }}]);
{% for o in range(OUTPUTS) %}
{% set m = o % 2 if GATE and MATRICES == 2 else s %}
{% set to = ("of_route" if EXPERTS == "sum" else "acc" ~ r) ~ ("" if OUTPUTS == 1 else "." ~ "xyzw"[o]) %}
{% include "products/snippets/row_products.wgsl" %}
{% endfor %}
            }
{% endfor %}
{% if EXPERTS == "sum" %}
            acc0 += {{ "" if SCALED else "routes[route].weight * " }}of_route;
{% endif %}
        }
{% if STAGED > 1 %}
        }
{% endif %}
    }
{% endfor %}
    // Sum over the team by butterfly exchange: each step halves the lanes that remain to be added and
    // the rows that a thread keeps, until it keeps one row.
{% if SUBGROUPS %}
    if (subgroup_size >= {{ LANES }}u) {
{% set left = namespace(rows=ROWS, lanes=LANES) %}
{% for _ in range(6) if left.lanes > 1 %}
{% set left.lanes = left.lanes // 2 %}
{% if left.rows > 1 %}
{% set left.rows = left.rows // 2 %}
        {
            let upper = (lane & {{ left.lanes }}u) != 0u;
{% for r in range(left.rows) %}
            let outgoing{{ r }} = select(acc{{ r + left.rows }}, acc{{ r }}, upper);
            acc{{ r }} = select(acc{{ r }}, acc{{ r + left.rows }}, upper) + subgroupShuffleXor(outgoing{{ r }}, {{ left.lanes }}u);
{% endfor %}
        }
{% else %}
        acc0 += subgroupShuffleXor(acc0, {{ left.lanes }}u);
{% endif %}
{% endfor %}
{% if T > LANES %}
        // The subgroups of the team add up their sums through workgroup memory.
        if (lane % {{ LANES // ROWS }}u == 0u) {
            partial[at / {{ LANES // ROWS }}u] = acc0;
        }
        workgroupBarrier();
        let first = team_of_all * {{ T // LANES * ROWS }}u + lane * {{ ROWS }}u / {{ T }}u;
        acc0 = Sums();
        for (var i = 0u; i < {{ T // LANES }}u; i++) {
            acc0 += partial[first + i * {{ ROWS }}u];
        }
{% endif %}
    } else {
        sum_rows(&acc0{% for r in range(1, ROWS) %}, &acc{{ r }}{% endfor %}, thread.index, team_of_all, lane);
    }
{% else %}
    sum_rows(&acc0{% for r in range(1, ROWS) %}, &acc{{ r }}{% endfor %}, thread.index, team_of_all, lane);
{% endif %}
    let own = {{ GROUP_ROW }}lane * {{ ROWS }}u / {{ T }}u;
{% if NORM %}
{% for r in range([ROWS // T, 1] | max) %}
    acc{{ r }} *= row_factor(own + {{ r }}u);
{% endfor %}
{% endif %}
{% if WIDTH %}
    if (lane % {{ [T // ROWS, 1] | max }}u == 0u) {
{% for r in range([ROWS // T, 1] | max) %}
{% for p in range(OUTPUTS // 2) %}
        gated[(own + {{ r }}u) * {{ WIDTH }}u + team * {{ OUTPUTS // 2 }}u + {{ p }}u] =
            gated_activation(acc{{ r }}[{{ 2 * p }}], acc{{ r }}[{{ 2 * p + 1 }}]);
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    for (var i = thread.index; i < {{ ALL_ROWS * WIDTH // 4 }}u; i += WG) {
        let r = i / {{ WIDTH // 4 }}u;
        let word = i % {{ WIDTH // 4 }}u;
        if (row + r < current.rows && item * {{ WIDTH }}u + 4u * word < OUTPUT_ROWS) {
            store_int8(row + r, item * {{ WIDTH }}u + 4u * word, r * {{ WIDTH }}u + 4u * word);
        }
    }
}

{% include "products/snippets/store_rows_int8.wgsl" %}
{% else %}
    if (lane % {{ [T // ROWS, 1] | max }}u != 0u) {
        return;
    }
{% if EXPERTS %}
    store({{ ITEM }}, team, {{ "route" if EXPERTS == "each" else "row" }}, acc0);
{% else %}
{% for r in range([ROWS // T, 1] | max) %}
    if (row + own + {{ r }}u < current.rows) {
{% if EARLY %}
        acc0 += {{ "old0" if OUTPUTS == 1 else "Sums(" ~ ["old0", "old1", "old2", "old3"][:OUTPUTS] | join(", ") ~ ")" }};
{% endif %}
        store(item, team, row + own + {{ r }}u, acc{{ r }});
    }
{% endfor %}
{% endif %}
}
{% endif %}

// Sum over the team through workgroup memory. Each thread gets the sums of its rows in the first
// variables.
fn sum_rows(
{% for r in range(ROWS) %}
    acc{{ r }}: ptr<function, Sums>,
{% endfor %}
    index: u32,
    team_of_all: u32,
    lane: u32,
) {
{% set each = [ROWS // T, 1] | max %}
{% for r in range(each) %}
    var own{{ r }} = Sums();
{% endfor %}
{% for r in range(ROWS) %}
    workgroupBarrier();
    partial[index] = *acc{{ r }};
    workgroupBarrier();
    if (lane * {{ ROWS }}u / {{ T }}u == {{ r // each * each }}u) {
        for (var i = 0u; i < {{ T }}u; i++) {
            own{{ r % each }} += partial[team_of_all * {{ T }}u + i];
        }
    }
{% endfor %}
{% for r in range(each) %}
    *acc{{ r }} = own{{ r }};
{% endfor %}
}
{% if not WIDTH %}

// Store the outputs of a team for one row{{ " or route" if EXPERTS }}.
fn store(item: u32, team: u32, row: u32, sums: Sums) {
{% if GATE %}
    let first = (item * TEAMS + team) * {{ OUTPUTS // 2 }}u;
{% if EXPERTS and BIAS %}
    let bias_row = min(routes[row].expert, EXPERT_COUNT - 1u) * OUTPUT_ROWS;
{% endif %}
{% for p in range(OUTPUTS // 2) %}
    if (first + {{ p }}u < OUTPUT_ROWS) {
{% if EXPERTS %}
        var gate = sums[{{ 2 * p }}]{{ " * routes[row].weight" if SCALED }};
        var up = sums[{{ 2 * p + 1 }}]{{ " * routes[row].weight" if SCALED }};
{% if BIAS %}
        let at = bias_row + first + {{ p }}u;
        gate += bias[at];
        up += bias[EXPERT_COUNT * OUTPUT_ROWS + at];
{% endif %}
        y0[row * OUTPUT_ROWS + first + {{ p }}u] = gated_activation(gate, up);
{% else %}
        y0[row * OUTPUT_ROWS + first + {{ p }}u] = gated_activation(sums[{{ 2 * p }}], sums[{{ 2 * p + 1 }}]);
{% endif %}
    }
{% endfor %}
{% else %}
{% for s in range(TARGETS) %}
    if (item >= FIRST{{ s }}{{ " && item < FIRST" ~ (s + 1) if s + 1 < TARGETS }}) {
        let first = ((item - FIRST{{ s }}) * TEAMS + team) * {{ OUTPUTS }}u;
{% for o in range(OUTPUTS) %}
        if (first + {{ o }}u < N{{ s }}) {
            let at = row * {{ "Y_STRIDE + BEFORE" ~ s if CONCATENATED else "N" ~ s }} + first + {{ o }}u;
{% if EXPERTS and BIAS %}
            var biases = 0.0;
            for (var route = row * TOP_K; route < (row + 1u) * TOP_K; route++) {
                let expert = min(routes[route].expert, EXPERT_COUNT - 1u);
                biases += {{ "" if SCALED else "routes[route].weight * " }}bias[expert * N0 + first + {{ o }}u];
            }
{% endif %}
{% set SUM = "sums" ~ ("[" ~ o ~ "]" if OUTPUTS > 1 else "") %}
{% set Y = "y" ~ (0 if CONCATENATED else s) ~ "[at]" %}
            {{ Y }} = {{ "activate(" ~ SUM ~ ")" if KIND == "activate" else SUM }}{{ (" + biases" if EXPERTS else " + bias[BEFORE" ~ s ~ " + first + " ~ o ~ "u]") if BIAS }}{{ " + " ~ Y if KIND == "add" and not EARLY }};
        }
{% endfor %}
    }
{% endfor %}
{% endif %}
}
{% endif %}
