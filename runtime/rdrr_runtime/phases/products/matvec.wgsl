// Fused product of one token row with one or several matrices: y = f(v), v = W in(x).
//
// in   plain      in(x) = x
//      quantized  likewise, x being int8 that a phase with INT8_OUT has written
//      norm       in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      layer_norm in(x) = (x - m) / sqrt(mean((x - m)^2) + EPS) (* (OFFSET + gain)) (+ shift), m = mean(x)
//      combine    in(x)[h] = sum_s e^(m_s - m) x[h, s] / sum_s e^(m_s - m) l_s, which combines the
//                 partial results of split attention, with (m_s, l_s) = stats[h, s] and m = max_s m_s;
//                 splits without keys are the last ones; with INPUT_GATE, times activate(gates[h])
//      gated      in(x)[h] = x[h] / sqrt(sum_b squares[h, b] / HEAD_DIM + EPS) * (OFFSET + gain) * activate(gates[h])
//      with ADDED, plain and norm read x + branch or x + norm(branch) instead, see snippets/added_branch.wgsl
// f    store      y[n] = v[n] (+ bias[n]); the outputs of several matrices lie side by side in y
//      add        y[n] += v[n] (+ bias[n])
//      gate       y[n] = activate(v_gate[n]) v_up[n]; gate and up are one matrix of 2 N rows or two of N; with
//                 INT8_OUT y is int8, and y_scales has (scale, bits of the i32 sum of the codes) of 16 outputs each
//      down       down[n] += sum_m D[n, m] y[m] for y of gate, and D the last matrix; see snippets/down.wgsl
//      activate   y[n] = activate(v[n] (+ bias[n])) (* factors[FACTORS_FIRST + n])
//      best       y[n] = v[n], and best has the largest output of each item; ties go to the lower n
//
// x         {{ VALUE }} [K], or f32 [heads, SPLITS, HEAD_DIM] for combine
// x_scales  vec2<f32> [K / 16], only for quantized: scale, and bits of the i32 sum of the codes
// gain      f32 [K] for norm and layer_norm, where it may be absent like shift, f32 [K]; f32 [HEAD_DIM] for gated;
//           with ADDED_NORMED that of the branch, [K], then that of norm, and with ADDED_SCALED a weight [1]
// branch    {{ VALUE }} [K], or in fixed point, only with ADDED; stream  {{ VALUE }} [K], only with ADDED_STORED: the sum
// squares   f32 [K / HEAD_DIM, BLOCKS], only for gated
// gates     {{ VALUE }}; those of head h begin at GATE_FIRST + h GATE_STRIDE
// weight    one buffer for each matrix, layout as in formats.py
// bias      f32 [N], only with BIAS; factors  {{ VALUE }}, only with FACTORS
// score     f32, only with SCORED: the sigmoid of entry SCORE_AT multiplies v
// y         {{ VALUE }} [N], f32 for best; none for down
//
// A tile is ROWS outputs of one matrix (for gate, ROWS outputs of gate and of up). An item computes
// every STRIDE-th tile, and a team of T threads computes {{ PER_TEAM }} output{{ "s" if PER_TEAM > 1 }} of a tile at a time. If the subgroup
// size is at least T, a team is a subgroup or a part of one; otherwise it sums through workgroup memory{{ ", and T may be any number" if SUMMERS }}{{ "; its threads are every ROWS-th one" if CROSSED }}.
{% if COLUMN %}
// Blocks along N have one scale for a group of outputs at each k. So for each group of a tile the scaled input
// a[k] = in(x)[k] scale[k] is staged{% if INT8 %} as int8{% endif %} (snippets/stage_tile.wgsl), and the minimums contribute one sum to all outputs
// of a group:
//
//     v[n] = sum_k a[k] code[n, k] - sum_k in(x)[k] minimum[k]
{% else %}
// Each item stages in(x) once{% if INT8 %}, as int8{% endif %}.
{% endif %}
// Accumulates in f32{% if INT8 %}; the int8 products of 16 inputs are summed exactly in i32{% endif %}.
{% set X = {"quantized": "u32", "combine": "f32"}.get(INPUT, VALUE) %}
{% set Y = "u32" if INT8_OUT else "f32" if OUTPUT == "best" else VALUE %}
{% set DOWN = OUTPUT == "down" %}
{% set GATE = OUTPUT == "gate" or DOWN %}
{% set MATRICES = FORMATS | length %}
{% set GATED_MATRICES = MATRICES - 1 if DOWN else MATRICES %}
{% set STAGES = TILE_GROUPS * (2 if GATE and COLUMN else 1) %}
{% set MINIMUMS = COLUMN and FORMATS[:GATED_MATRICES] | selectattr("minimum") | list | length > 0 %}
{% set EACH = PER_TEAM // TILE_GROUPS %}
var<storage, read> x: array<vec4<{{ X }}>>;
{% if INPUT == "quantized" %}
var<storage, read> x_scales: array<vec2<f32>>;
{% elif INPUT == "norm" or ADDED_NORMED %}
var<storage, read> gain: array<vec4<f32>>;
{% elif INPUT == "layer_norm" %}
{% if INPUT_GAIN %}
var<storage, read> gain: array<vec4<f32>>;
{% endif %}
{% if INPUT_BIAS %}
var<storage, read> shift: array<vec4<f32>>;
{% endif %}
{% elif INPUT == "combine" %}
var<storage, read> stats: array<vec2<f32>>;
{% elif INPUT == "gated" %}
var<storage, read> squares: array<f32>;
var<storage, read> gain: array<vec4<f32>>;
{% endif %}
{% if INPUT_GATE %}
var<storage, read> gates: array<{{ VALUE }}>;
{% endif %}
{% if ADDED %}
var<storage, read> branch: array<vec4<{{ "u32" if ADDED_FIXED else VALUE }}>>;
{% endif %}
{% if ADDED_STORED %}
var<storage, read_write> stream: array<vec4<{{ VALUE }}>>;
{% endif %}
{% for F in FORMATS %}
var<storage, read> weight{{ loop.index0 }}: array<vec4<u32>>;
{% endfor %}
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}
{% if FACTORS %}
var<storage, read> factors: array<{{ VALUE }}>;
{% endif %}
{% if SCORED %}
var<storage, read> score: array<f32>;
{% endif %}
{% if DOWN %}
var<storage, read_write> down: array<atomic<u32>>;
{% else %}
var<storage, read_write> y: array<{{ Y }}>;
{% endif %}
{% if INT8_OUT %}
var<storage, read_write> y_scales: array<vec2<f32>>;
{% elif OUTPUT == "best" %}
var<storage, read_write> best: array<vec2<u32>>;
{% endif %}

{% include "snippets/value.wgsl" %}
override T: u32;
override K: u32;
override K_STAGED: u32;          // K rounded up to whole units, a multiple of 64
override ROWS: u32;              // outputs of a tile
override STRIDE: u32;            // number of items
override STEPS: u32;             // tiles of each item
{% if INT8_OUT %}
override KEPT_TILES: u32;        // tiles that are stored together
{% endif %}
{% if DOWN %}
override SLOT: u32;              // words from the results of this phase to those that it clears
{% if COLUMN %}
override STAGED: u32;            // most values staged at a time, those of gate and up or those of down
override GROUPS: u32;            // of outputs of down that share scales
{% endif %}
{% endif %}
{% if FACTORS %}
override FACTORS_FIRST: u32;
{% endif %}
{% if SCORED %}
override SCORE_AT: u32;
{% endif %}
{% for F in FORMATS %}
override N{{ loop.index0 }}: u32;
override TILES{{ loop.index0 }}: u32;
override UNITS{{ loop.index0 }}: u32;   // units of a row that hold any of its K inputs
override TRIPS{{ loop.index0 }}: u32;   // iterations of a team along a row
override EXACT{{ loop.index0 }}: bool;  // whether every thread of a team has a unit in every iteration
{% endfor %}
{% if INPUT == "norm" %}
override EPS: f32;
override OFFSET: f32;
{% elif INPUT == "layer_norm" %}
override EPS: f32;
{% if INPUT_GAIN %}
override OFFSET: f32;
{% endif %}
{% elif INPUT == "combine" %}
override SPLITS: u32;
override HEAD_DIM: u32;
override PARTIALS: u32;          // heads times SPLITS
{% elif INPUT == "gated" %}
override EPS: f32;
override OFFSET: f32;
override HEAD_DIM: u32;
override BLOCKS: u32;            // sums of squares of a head
{% endif %}
{% if INPUT_GATE %}
override GATE_STRIDE: u32;
override GATE_FIRST: u32;
{% endif %}

{% include "weights/snippets/weights.wgsl" %}

{% if ADDED_FIXED or DOWN %}
{% include "snippets/fixed_point.wgsl" %}
{% endif %}
{% if ADDED %}
{% include "products/snippets/added_branch.wgsl" %}
{% endif %}
{% include "products/snippets/matvec_input.wgsl" %}
{% include "products/snippets/stage.wgsl" %}

{% include "products/snippets/output_tiles.wgsl" %}
{% if COLUMN %}
// Sums of the minimums of the groups of a tile.
alias Minimums = {{ "f32" if STAGES == 1 else "vec" ~ STAGES ~ "<f32>" }};

{% include "products/snippets/stage_tile.wgsl" %}
{% endif %}
{% if INT8 %}
{% include "products/snippets/int8_dot.wgsl" %}
{% endif %}
{% for F in FORMATS %}
{% set S = loop.index0 %}

{% include "products/snippets/dot_unit.wgsl" %}
{% endfor %}

{% set WIDTH = PER_TEAM * (2 if GATE else 1) %}
alias Sums = {{ "f32" if WIDTH == 1 else "vec" ~ WIDTH ~ "<f32>" }};{% if GATE %}  // outputs of gate, then of up{% endif %}

var<workgroup> partial: array<Sums, WG>;
{% if OUTPUT == "best" %}
{% include "snippets/candidate.wgsl" %}
{% endif %}
{% if INT8_OUT or DOWN %}
var<workgroup> gated: array<f32, {{ PAIRS or "KEPT_TILES * ROWS" }}>;
{% endif %}
{% if INPUT == "layer_norm" %}
{% set NAME, SUM = "moments", "vec2<f32>" %}
{% include "products/snippets/workgroup_sum.wgsl" %}
{% endif %}
{% if ADDED_NORMED %}
{% set NAME, SUM = "branch_squares", "f32" %}
{% include "products/snippets/workgroup_sum.wgsl" %}
{% endif %}
{% set SUMMED = (1 if INPUT == "norm" else 0) + (STAGES if MINIMUMS else 0) %}
{% if SUMMED %}
{% set NAME, SUM = "totals", "f32" if SUMMED == 1 else "vec" ~ SUMMED ~ "<f32>" %}
// The totals are {{ "the sum of squares" if INPUT == "norm" }}{{ ", then " if INPUT == "norm" and MINIMUMS }}{{ "the sums of minimums of the groups of a tile" if MINIMUMS }}.
{% include "products/snippets/workgroup_sum.wgsl" %}
{% endif %}

{% if GATE or OUTPUT == "activate" %}
{% include "snippets/activate.wgsl" %}

{% endif %}
{% if SCORED %}
{% include "snippets/sigmoid.wgsl" %}

{% endif %}
{% include "products/snippets/spread_sum.wgsl" if SUMMERS else "snippets/team_sum.wgsl" %}
{% if DOWN %}
{% include "products/snippets/down.wgsl" %}
{% endif %}
{% if INT8_OUT %}
{% include "products/snippets/store_int8.wgsl" %}
{% endif %}

fn phase(item: u32, thread: Thread, subgroup_size: u32) {
    var team = thread.index / T;
    var lane = thread.index % T;
{% if SUMMERS %}
    let t = {{ "thread.subgroup * subgroup_size + thread.lane" if SUBGROUPS else "thread.index" }};
    team = {{ "t % ROWS" if CROSSED else "min(t / T, ROWS - 1u)" }};  // threads beyond the last team compute what nobody adds up
    lane = {{ "t / ROWS" if CROSSED else "t % T" }};
    let own_team = t / {{ SUMMERS }}u;
    let own_lane = t % {{ SUMMERS }}u;
{% elif SUBGROUPS %}
    if (subgroup_size >= T) {
        team = (thread.subgroup * subgroup_size + thread.lane) / T;
        lane = thread.lane % T;
    }
{% endif %}
{% if not SUMMERS %}
    let own_team = team;
    let own_lane = lane;
{% endif %}
{% if INPUT == "combine" %}
    load_stats(thread.index);
{% elif INPUT == "layer_norm" %}
    publish_moments(moments(thread.index), thread);
    workgroupBarrier();
    set_moments(workgroup_moments(thread));
{% elif ADDED_NORMED %}
    // The index of the first input that this thread stages.
    let own = {{ "select(thread.index, thread.subgroup * subgroup_size + thread.lane, subgroup_size >= 4u)" if INT8 and SUBGROUPS else "thread.index" }};
    publish_branch_squares(branch_squares(own), thread);
    workgroupBarrier();
    set_branch_factor(workgroup_branch_squares(thread));
{% endif %}
{% if ADDED_STORED %}
    if (item == 0u) {
        store_stream({{ "own" if ADDED_NORMED else "thread.index" }});
    }
{% endif %}
{% if COLUMN %}
{% if QUADS %}
    // The scales first: they come from memory, and the input may not be there yet.
    let first = own_quad(thread, subgroup_size);
    var inputs: Inputs;
    var scales_of_tile: Scales;
    load_scales(item, first, &scales_of_tile);
    let squares = load_inputs(first, &inputs);
{% endif %}
{% else %}
{% if INPUT == "quantized" %}
    stage(thread);
{% else %}
    let squares = stage(thread, subgroup_size);
{% endif %}
{% if INPUT == "norm" %}
    publish_totals(squares, thread);
    workgroupBarrier();
    let factor = inverseSqrt(workgroup_totals(thread) / f32(K) + EPS);
{% else %}
    workgroupBarrier();
    let factor = 1.0;
{% endif %}
{% endif %}
{% if OUTPUT == "best" %}
    var top = Candidate(-3.4028234663852886e38, 0xffffffffu);
{% endif %}
{% if DOWN and COLUMN %}
    // Loaded here, so that nobody waits for them between the gated outputs and the down projection.
    let own_down = own_quad(thread, subgroup_size);
{% for q in range(SCALE_QUADS) %}
    let down_scales{{ q }} = down_scales({{ q }}u * WG + own_down, item);
{% endfor %}
{% endif %}
    for (var step = 0u; step < STEPS; step++) {
        let tile = {{ "item * STEPS + step" if DOWN else "step * STRIDE + item" }};
        let outputs = outputs_of(tile);
        var acc = Sums();
{% if OUTPUT == "add" %}
        // Here, so that it is not waited for at the end.
        let residual = f32(y[min(outputs.x + in_tile(own_team, min(own_lane, {{ PER_TEAM - 1 }}u)), outputs.y - 1u)]);
{% endif %}
{% if COLUMN %}
{% if QUADS %}
        if (step > 0u) {
            load_scales(tile, first, &scales_of_tile);
        }
        let own_minimums = stage_quads(thread, subgroup_size, first, &inputs, &scales_of_tile);
{% else %}
        var squares = 0.0;
        let own_minimums = stage_tile(thread, subgroup_size, tile, &squares);
{% endif %}
{% if SUMMED == 1 %}
        publish_totals({{ "squares" if INPUT == "norm" else "own_minimums" }}, thread);
{% elif SUMMED %}
        publish_totals(vec{{ SUMMED }}<f32>({{ "squares, " if INPUT == "norm" }}own_minimums), thread);
{% endif %}
        workgroupBarrier();
{% if SUMMED %}
        let totals = workgroup_totals(thread);
{% endif %}
        let factor = {{ "inverseSqrt(totals" ~ (".x" if SUMMED > 1) ~ " / f32(K) + EPS)" if INPUT == "norm" else "1.0" }};
{% endif %}
{% for F in FORMATS %}
{% if not GATE or loop.first %}
{% set s = loop.index0 %}
{% set s_up = 1 if GATED_MATRICES == 2 else 0 %}
        if (tile_of{{ s }}(tile) < TILES{{ s }}) {
            let first_row = tile_of{{ s }}(tile) * ROWS;
            let rows = N{{ s }}{{ " / 2u" if GATE and GATED_MATRICES == 1 }};
{% if GATE %}
            let up = {{ "rows" if GATED_MATRICES == 1 else "0u" }};
{% endif %}
            for (var trip = 0u; trip < TRIPS{{ s }}; trip++) {
                let unit = trip * T + lane;
                if (!EXACT{{ s }} && unit >= UNITS{{ s }}) {
                    continue;
                }
{% for r in range(PER_TEAM) %}
{% set staged_at = (r // EACH) ~ "u * (K_STAGED / 4u) + " if COLUMN and r >= EACH %}
                let row{{ r }} = min(first_row + in_tile(team, {{ r }}u), rows - 1u);
                acc{{ "." ~ "xyzw"[r] if WIDTH > 1 }} += dot_unit{{ s }}(row{{ r }}, unit, {{ staged_at }}{{ F.unit // 4 }}u * unit);
{% if GATE %}
{% set staged_at = (TILE_GROUPS + r // EACH) ~ "u * (K_STAGED / 4u) + " if COLUMN %}
                acc.{{ "xyzw"[PER_TEAM + r] }} += dot_unit{{ s_up }}(up + row{{ r }}, unit, {{ staged_at }}{{ FORMATS[s_up].unit // 4 }}u * unit);
{% endif %}
{% endfor %}
            }
        }
{% endif %}
{% endfor %}
        let sum = team_sum(acc, thread, subgroup_size, {{ "t" if SUMMERS else "team" }});
        let own_row = in_tile(own_team, own_lane);
        if (own_lane < {{ PER_TEAM }}u{{ " && own_team < ROWS" if SUMMERS }}{{ " && outputs.x + own_row < outputs.y" if not (INT8_OUT or DOWN) }}) {
            let n = outputs.x + own_row;
{% set squares = 1 if INPUT == "norm" else 0 %}
{% set less = "totals" ~ ("[" ~ squares ~ "u + own_lane / " ~ EACH ~ "u]" if SUMMED > 1 else "") %}
            let product = factor * {{ "(" if MINIMUMS }}sum{{ "[own_lane]" if WIDTH > 1 }}{{ " - " ~ less ~ ")" if MINIMUMS }};
{% if GATE %}
{% set less = "totals[" ~ (squares + TILE_GROUPS) ~ "u + own_lane / " ~ EACH ~ "u]" %}
            let result = gated_activation(product, factor * {{ "(" if MINIMUMS }}sum[{{ PER_TEAM }}u + own_lane]{{ " - " ~ less ~ ")" if MINIMUMS }});
{% if INT8_OUT or DOWN %}
            gated[{{ "step * ROWS + " if DOWN else "step % KEPT_TILES * ROWS + " }}own_row] = result;
{% else %}
            y[n] = value(result);
{% endif %}
{% else %}
{% if OUTPUT == "best" %}
            top = better(top, Candidate(ranked(product), n));
{% endif %}
            let result = product{{ " * sigmoid(score[SCORE_AT])" if SCORED }}{{ " + bias[n]" if BIAS }}{{ " + residual" if OUTPUT == "add" }};
{% if OUTPUT == "activate" %}
            y[n] = value(activate(result){{ " * f32(factors[FACTORS_FIRST + n])" if FACTORS }});
{% else %}
            y[n] = {{ "value(result)" if Y == VALUE else "result" }};
{% endif %}
{% endif %}
        }
{% if INT8_OUT %}
        if (step % KEPT_TILES == KEPT_TILES - 1u || step == STEPS - 1u) {
            workgroupBarrier();
            store_int8(item, step - step % KEPT_TILES, step % KEPT_TILES + 1u, thread.index);
            workgroupBarrier();  // until all threads have read what the next tile overwrites
        }
{% elif COLUMN %}
        workgroupBarrier();  // until all threads have read what the next tile overwrites
{% endif %}
    }
{% if DOWN %}
    add_down(item, thread, subgroup_size{% for q in range(SCALE_QUADS) %}, down_scales{{ q }}{% endfor %});
{% endif %}
{% if OUTPUT == "best" %}
    let winner = best_of_workgroup(top, thread.index);
    if (thread.index == 0u) {
        best[item] = words_of(winner);
    }
{% endif %}
}
