{% set F = FORMATS[0] %}
{% set GROUP, MINIMUM = F.group, F.minimum %}
// y = x W^T (+ bias) (+ y) for many token rows, multiplied in int8.
//
// current     Step, not with experts
// x           16 int8 codes a vector, [K_PADDED / 16, ROWS], written by quantize_rows
// x_scales    vec2<f32> [K_PADDED / 32, ROWS]: {{ "scales of the first and the last of 32 inputs" if HALVES else "scale of 32 inputs, and the scale times the sum of their codes" }}
// weight0     OUTPUTS rows from row FIRST on, layout as in formats.py
// y           f32 [rows, N], N being the outputs of all parts
// bias        f32 [N], only with BIAS
{% if EXPERTS %}
// groups      u32 [experts, 1 + MAX_ROWS]: the number of routes of each expert, followed by its routes
//
// The matrix is a stack of experts of N rows each: y[g] = W[e] x[{{ "g" if EXPERTS == "route" else "r" }}] for each route g = r TOP_K + s
// of a row r to an expert e. The rows of a tile are routes of one expert.
{% endif %}
//
// y sums x_scale w_scale (q_x . q_w) - w_minimum x_sum over groups of {{ GROUP }} inputs. The products of a group
// accumulate in i32, the groups in f32.
//
// An item is a tile of {{ TILE_M }} rows by {{ TILE_N }} outputs{{ ", the items of the first expert first" if EXPERTS }}. In steps of 64 inputs, {{ TILE_M // TM * (TILE_N // TN) }} threads
// stage x and the unpacked codes and scales of the weights in workgroup memory. Then each thread
// multiplies {{ TM }} rows by {{ TN }} outputs while the loads of the next step are in flight. 32 consecutive threads
// cover 4 rows by 8 outputs, so that most of their reads of workgroup memory are shared.
{% if TEAMS > 1 %}
// {{ TEAMS }} such teams of threads share the steps of a tile; the first adds up their sums.
{% endif %}
{% set BOTH = MINIMUM or HALVES %}
{% set MT = TILE_M // TM %}
{% set NT = TILE_N // TN %}
{% set THREADS = MT * NT %}
{% set X_LOADS = TILE_M * 4 // THREADS %}
{% set W_LOADS = (2 * TILE_N + THREADS - 1) // THREADS %}
{% set PER_STEP = 64 // GROUP %}
{% set XS, WS = TILE_M * TEAMS, TILE_N * TEAMS %}
{% set X_ROW = "input_row(expert, " if EXPERTS else "" %}
{% if not EXPERTS %}
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
{% endif %}
var<storage, read> x: array<vec4<u32>>;
var<storage, read> x_scales: array<vec2<f32>>;
var<storage, read> weight0: array<vec4<u32>>;
var<storage, read_write> y: array<f32>;
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}
{% if EXPERTS %}
var<storage, read> groups: array<u32>;

override TOP_K: u32;
override MAX_ROWS: u32;
{% endif %}

override ROWS: u32;              // stride of x
override STEPS: u32;             // steps of 64 inputs
override N: u32;                 // outputs of {{ "an expert" if EXPERTS else "all parts" }}
override FIRST: u32;             // index of this part's first row
override OUTPUTS: u32;           // rows of this part
override ACCUMULATE: bool;

var<workgroup> tile_x: array<vec4<u32>, {{ XS * 4 }}>;       // [4 times 16 inputs, teams, rows]
var<workgroup> tile_w: array<vec4<u32>, {{ WS * 4 }}>;       // [4 times 16 inputs, teams, outputs]
var<workgroup> scale_x: array<{{ "vec2<f32>" if BOTH else "f32" }}, {{ XS * 2 }}>;      // [2 groups, teams, rows]
var<workgroup> scale_w: array<{{ "vec2<f32>" if MINIMUM else "f32" }}, {{ WS * PER_STEP }}>;  // [groups, teams, outputs]

{% include "weights/snippets/weights.wgsl" %}
{% include "products/snippets/tile.wgsl" %}

{% include "products/snippets/int8_dot.wgsl" %}

{% if EXPERTS %}
// The m-th of the `count` routes of an expert; the last one for a larger m.
fn route(expert: u32, m: u32, count: u32) -> u32 {
    return groups[expert * (1u + MAX_ROWS) + 1u + min(m, count - 1u)];
}

// The row of x that the m-th route of an expert multiplies.
fn input_row(expert: u32, m: u32, count: u32) -> u32 {
    return route(expert, m, count){{ "" if EXPERTS == "route" else " / TOP_K" }};
}

fn store(expert: u32, m: u32, count: u32, output: u32, sum: f32) {
    if (m < count && output < N) {
        y[route(expert, m, count) * N + output] = sum;
    }
}
{% else %}
fn store(row: u32, rows: u32, output: u32, sum: f32) {
    if (row >= rows || output >= OUTPUTS) {
        return;
    }
    let n = FIRST + output;
    var value = sum;
{% if BIAS %}
    value += bias[n];
{% endif %}
    if (ACCUMULATE) {
        value += y[row * N + n];
    }
    y[row * N + n] = value;
}
{% endif %}

fn phase(item: u32, row: u32, thread: Thread) {
{% if EXPERTS %}
    let tiles = (N + {{ TILE_N - 1 }}u) / {{ TILE_N }}u;  // tiles along the outputs of an expert
    let expert = item / tiles;
    let rows = groups[expert * (1u + MAX_ROWS)];
    let n0 = item % tiles * {{ TILE_N }}u;
    if (row >= rows) {
        return;
    }
{% else %}
    let rows = current.rows;
    let n0 = item * {{ TILE_N }}u;
{% endif %}
    let t = thread.index{{ " % " ~ THREADS ~ "u" if TEAMS > 1 }};
    let team = {{ "thread.index / " ~ THREADS ~ "u" if TEAMS > 1 else "0u" }};
    let tn = t / 32u % {{ NT // 8 }}u * 8u + t / 2u % 8u;
    let tm = t / 32u / {{ NT // 8 }}u * 4u + t / 16u % 2u * 2u + t % 2u;
    // This thread stages {{ X_LOADS }} times 16 inputs of x and {{ W_LOADS }} times 32 weights of a row.
{% for i in range(X_LOADS) %}
    let x_slot{{ i }} = t + {{ i * THREADS }}u;
    let x_row{{ i }} = {{ X_ROW }}row + x_slot{{ i }} % {{ TILE_M }}u{{ ", rows)" if EXPERTS }};
    let x_from{{ i }} = (x_slot{{ i }} / {{ TILE_M }}u) * ROWS + x_row{{ i }};
    let x_to{{ i }} = (x_slot{{ i }} / {{ TILE_M }}u) * {{ XS }}u + team * {{ TILE_M }}u + x_slot{{ i }} % {{ TILE_M }}u;
{% endfor %}
    let s_slot = min(t, {{ TILE_M * 2 - 1 }}u);
    let s_row = {{ X_ROW }}row + s_slot % {{ TILE_M }}u{{ ", rows)" if EXPERTS }};
    let s_from = (s_slot / {{ TILE_M }}u) * ROWS + s_row;
    let s_to = (s_slot / {{ TILE_M }}u) * {{ XS }}u + team * {{ TILE_M }}u + s_slot % {{ TILE_M }}u;
{% for i in range(W_LOADS) %}
    let w_slot{{ i }} = min(t + {{ i * THREADS }}u, {{ 2 * TILE_N - 1 }}u);
    let w_row{{ i }} = w_slot{{ i }} % {{ TILE_N }}u;
    let w_part{{ i }} = w_slot{{ i }} / {{ TILE_N }}u;
    let w_to{{ i }} = team * {{ TILE_N }}u + w_row{{ i }};
    let w_from{{ i }} = {{ "expert * N + " if EXPERTS }}min(n0 + w_row{{ i }}, OUTPUTS - 1u);
{% endfor %}
{% for i in range(X_LOADS) %}
    var x_next{{ i }} = x[x_from{{ i }} + 4u * team * ROWS];
{% endfor %}
    var s_next = x_scales[s_from + 2u * team * ROWS];
{% for i in range(W_LOADS) %}
    var w_next{{ i }} = fetch(w_from{{ i }}, min(team, STEPS - 1u), w_part{{ i }});
{% endfor %}
{% for m in range(TM) %}
{% for n in range(TN) %}
    var acc{{ m }}_{{ n }} = 0.0;
{% endfor %}
{% endfor %}
    for (var step = 0u; step < STEPS; step += {{ TEAMS }}u) {
{% for i in range(X_LOADS) %}
        tile_x[x_to{{ i }}] = x_next{{ i }};
{% endfor %}
{% if THREADS > TILE_M * 2 %}
        if (t < {{ TILE_M * 2 }}u) {
            scale_x[s_to] = s_next{{ "" if BOTH else ".x" }};
        }
{% else %}
        scale_x[s_to] = s_next{{ "" if BOTH else ".x" }};
{% endif %}
{% for i in range(W_LOADS) %}
{% if (i + 1) * THREADS > 2 * TILE_N %}
        if (t < {{ 2 * TILE_N - i * THREADS }}u) {
            unpack(w_next{{ i }}, w_to{{ i }}, w_part{{ i }});
        }
{% else %}
        unpack(w_next{{ i }}, w_to{{ i }}, w_part{{ i }});
{% endif %}
{% endfor %}
        workgroupBarrier();
        let next = min(step + {{ TEAMS }}u + team, {{ "(STEPS + 3u) / 4u * 4u" if TEAMS > 1 else "STEPS" }} - 1u);
{% for i in range(X_LOADS) %}
        x_next{{ i }} = x[x_from{{ i }} + 4u * next * ROWS];
{% endfor %}
        s_next = x_scales[s_from + 2u * next * ROWS];
{% for i in range(W_LOADS) %}
        w_next{{ i }} = fetch(w_from{{ i }}, {{ "min(next, STEPS - 1u)" if TEAMS > 1 else "next" }}, w_part{{ i }});
{% endfor %}
{% for g in range(2) %}
        {
{% for n in range(TN) %}
            let at{{ n }} = team * {{ TILE_N }}u + tn + {{ n * NT }}u;
            let a{{ n }} = tile_w[at{{ n }} + {{ 2 * g * WS }}u];
            let b{{ n }} = tile_w[at{{ n }} + {{ (2 * g + 1) * WS }}u];
{% if GROUP == 32 %}
            let w{{ n }} = scale_w[at{{ n }} + {{ g * WS }}u];
{% else %}
            let w{{ n }} = scale_w[at{{ n }} + {{ 2 * g * WS }}u];
            let v{{ n }} = scale_w[at{{ n }} + {{ (2 * g + 1) * WS }}u];
{% endif %}
{% endfor %}
{% for m in range(TM) %}
            {
                let at = team * {{ TILE_M }}u + tm + {{ m * MT }}u;
                let c = tile_x[at + {{ 2 * g * XS }}u];
                let d = tile_x[at + {{ (2 * g + 1) * XS }}u];
                let s = scale_x[at + {{ g * XS }}u];
{% for n in range(TN) %}
{% if HALVES %}
                acc{{ m }}_{{ n }} += w{{ n }} * (s.x * magic_to_f32(dot16(MAGIC_BITS, a{{ n }}, c)) + s.y * magic_to_f32(dot16(MAGIC_BITS, b{{ n }}, d)));
{% elif GROUP == 16 %}
                acc{{ m }}_{{ n }} += s * (w{{ n }} * magic_to_f32(dot16(MAGIC_BITS, a{{ n }}, c)) + v{{ n }} * magic_to_f32(dot16(MAGIC_BITS, b{{ n }}, d)));
{% elif MINIMUM %}
                acc{{ m }}_{{ n }} += (s.x * w{{ n }}.x) * magic_to_f32(dot16(dot16(MAGIC_BITS, a{{ n }}, c), b{{ n }}, d));
                acc{{ m }}_{{ n }} -= s.y * w{{ n }}.y;
{% else %}
                acc{{ m }}_{{ n }} += (s * w{{ n }}) * magic_to_f32(dot16(dot16(MAGIC_BITS, a{{ n }}, c), b{{ n }}, d));
{% endif %}
{% endfor %}
            }
{% endfor %}
        }
{% endfor %}
        workgroupBarrier();
    }
{% if TEAMS > 1 %}
{% set IN_X = XS * 4 // THREADS %}
{% for other in range(1, TEAMS) %}
    if (team == {{ other }}u) {
{% for m in range(TM) %}
{% for quad in range(TN // 4) %}
{% set slot = m * (TN // 4) + quad %}
        {{ "tile_x" if slot < IN_X else "tile_w" }}[{{ (slot if slot < IN_X else slot - IN_X) * THREADS }}u + t] =
            bitcast<vec4<u32>>(vec4<f32>({% for n in range(4) %}acc{{ m }}_{{ 4 * quad + n }}{{ ", " if n < 3 }}{% endfor %}));
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    if (team == 0u) {
{% for m in range(TM) %}
{% for quad in range(TN // 4) %}
{% set slot = m * (TN // 4) + quad %}
        let part{{ slot }} = bitcast<vec4<f32>>({{ "tile_x" if slot < IN_X else "tile_w" }}[{{ (slot if slot < IN_X else slot - IN_X) * THREADS }}u + t]);
{% for n in range(4) %}
        acc{{ m }}_{{ 4 * quad + n }} += part{{ slot }}.{{ "xyzw"[n] }};
{% endfor %}
{% endfor %}
{% endfor %}
    }
{% if other + 1 < TEAMS %}
    workgroupBarrier();
{% endif %}
{% endfor %}
    if (team > 0u) {
        return;  // no barrier follows
    }
{% endif %}
{% for m in range(TM) %}
{% for n in range(TN) %}
    store({{ "expert, " if EXPERTS }}row + tm + {{ m * MT }}u, rows, n0 + tn + {{ n * NT }}u, acc{{ m }}_{{ n }});
{% endfor %}
{% endfor %}
}
