{% set M, N, K = SHAPE %}
{% set TEAMS_MN = TEAMS_M * TEAMS_N %}
{% set TEAMS = TEAMS_MN * TEAMS_K %}
{% set THREADS = TEAMS * SIZE %}
{% set FM, FN = TILE_M // TEAMS_M // M, TILE_N // TEAMS_N // N %}
{% set PITCH = STEP + 8 %}
{% set X_LOADS = TILE_M * STEP // 8 // THREADS %}
{% set QUADS = STEP // 4 %}
{% set HALVES_ONLY = FORMATS | map(attribute="values") | unique | list == ["f16"] %}
{% set COLUMNS = FORMATS | selectattr("column") | list %}
{% set ELEMENTS = M * N // SIZE %}
{% set STRIDE = SIZE * TEAMS_K %}
{% set DEPTH = STEP // TEAMS_K %}
{# Halves in an element of a tile, in which offsets and pitches of matrices count: threads store 16 bytes at once. #}
{% set UNIT = 8 if MATRICES else 1 %}
{% set HALVES = "vec4<u32>" if MATRICES else "f16" %}
{# Sums are stored where weights were, if a subgroup has room for a row of them there. #}
{% set RESULTS = "tile_w" if STORED else "results" %}
{% set AT_ONCE = STORED or 1 %}{# matrices beside each other #}
{% set WIDTH = AT_ONCE * N %}
// y = x W^T (+ bias) (+ y) for many token rows, as products of matrices that a subgroup multiplies at once:
// f16 x f16, with sums in f32.
//
// current  Step
// x        f16 [ROWS, K_PADDED], written by half_rows, 8 values a vector
// factors  f32 [ROWS]: what each row of x is to be multiplied by
// weight   one buffer for each matrix, OUTPUTS rows from row FIRST on, layout as in formats.py
{% if APART %}
// y        f32 [rows, OUTPUTS], one for each matrix
{% else %}
// y        f32 [{{ SPLITS ~ ", Y_ROWS" if SPLITS > 1 else "rows" }}, N], N being the outputs of all parts and matrices{{ "; sum_splits adds the splits" if SPLITS > 1 }}
{% endif %}
// bias     f32 [N], only with BIAS
//
// An item is a tile of {{ TILE_M }} rows by {{ TILE_N }} outputs{{ " for one of %d parts of the inputs" % SPLITS if SPLITS > 1 }}{{ ", those of the first matrix first" if FORMATS | length > 1 }}. In steps of {{ STEP }} inputs, {{ THREADS }} threads store x and the weights,
// dequantized and in f16, in workgroup memory. Then each of {{ TEAMS }} subgroups multiplies {{ FM * M }} rows by {{ FN * N }}
// outputs{{ " for " ~ DEPTH ~ " of these inputs" if TEAMS_K > 1 }}, {{ M }} x {{ N }} with {{ K }} inputs at once, while the loads of the next {{ "%d steps" % AHEAD if AHEAD > 1 else "step" }} are in flight.
{% if not MATRICES %}
// Teams of {{ SIZE }} threads take the place of subgroups here, and multiply what these would at once element by element.
{% endif %}
{% include "snippets/step.wgsl" %}

var<storage, read> current: Step;
var<storage, read> x: array<vec4<u32>>;
var<storage, read> factors: array<f32>;
{% for F in FORMATS %}
var<storage, read> weight{{ loop.index0 }}: array<vec4<u32>>;
{% endfor %}
{% for at in (range(FORMATS | length) if APART else [""]) %}
var<storage, read_write> y{{ at }}: array<f32>;
{% endfor %}
{% if BIAS %}
var<storage, read> bias: array<f32>;
{% endif %}

override K_PADDED: u32;          // a multiple of 64
override N: u32;                 // outputs of all parts and matrices
{% for F in FORMATS %}
override FIRST{{ loop.index0 }}: u32;            // index of its first output among all
override OUTPUTS{{ loop.index0 }}: u32;          // its rows
{% endfor %}
override ACCUMULATE: bool;
{% if SPLITS > 1 %}
override Y_ROWS: u32;            // rows of y of each split
{% endif %}

// Rows and outputs begin 16 bytes after a multiple of 128, so that fewer of them share a bank.
const PITCH = {{ PITCH // UNIT }}u;
// Weights are multiplied by a power of two, which keeps small ones out of the subnormal numbers of f16.
const FACTOR = {{ "1.0" if HALVES_ONLY else "256.0" }};

var<workgroup> tile_x: array<{{ HALVES }}, {{ TILE_M * PITCH // UNIT }}>;   // [rows, inputs]
var<workgroup> tile_w: array<{{ HALVES }}, {{ TILE_N * PITCH // UNIT }}>;   // [outputs, inputs]
{% if COLUMNS %}
{% set SLOTS = TILE_N // (COLUMNS | map(attribute="group") | min) * QUADS %}
var<workgroup> scale_w: array<vec4<f32>, {{ SLOTS }}>;   // [groups of outputs, inputs / 4]
{% if COLUMNS | selectattr("minimum") | list %}
var<workgroup> minimum_w: array<vec4<f32>, {{ SLOTS }}>;
{% endif %}
{% endif %}
{% if RESULTS == "results" %}
var<workgroup> results: array<f32, {{ TEAMS * M * N }}>;   // of {{ M }} x {{ N }} outputs of each subgroup
{% endif %}

{% set DEQUANTIZED, FACTOR = true, "FACTOR * " %}
{% include "weights/snippets/weights.wgsl" %}

{% if MATRICES %}
fn words(first: vec4<f16>, last: vec4<f16>) -> vec4<u32> {
    return vec4<u32>(bitcast<vec2<u32>>(first), bitcast<vec2<u32>>(last));
}
{% else %}
// naga has no bitcast to f16.
fn halves(word: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(word));
}
{% endif %}

{# Store 8 halves, given as the 4 words that hold them. #}
{% macro put_words(tile, to, words) %}
{% if MATRICES %}
            {{ tile }}[{{ to }}] = {{ words }};
{% else %}
{% for c in range(8) %}
            {{ tile }}[{{ to }} + {{ c }}u] = halves({{ words }}.{{ "xyzw"[c // 2] }}).{{ "xy"[c % 2] }};
{% endfor %}
{% endif %}
{% endmacro %}
{# A stored sum. Not a function, as Tint would not see that the index is in range. #}
{% macro result(at) %}
{{ "bitcast<f32>(tile_w[(%s) / 4u][(%s) %% 4u])" % (at, at) if RESULTS == "tile_w" else "results[%s]" % at }}
{%- endmacro %}
// What a product is multiplied by and added to.
struct Before {
    factor: f32,
    summand: f32,
}

{% for F in FORMATS %}
{% set S = loop.index0 %}
{% set Y, WIDE, FIRST = ("y%d" % S, "OUTPUTS%d" % S, "") if APART else ("y", "N", "FIRST%d + " % S) %}
{# Pieces in which threads load weights: 32 codes, or 8 values. #}
{% set PIECE = 8 if F.values else 32 %}
{% set PIECES = STEP // PIECE %}
{% set W_LOADS = (TILE_N * PIECES + THREADS - 1) // THREADS %}
{% set W_SCALES = TILE_N // F.group * QUADS if F.column else 0 %}
fn before_{{ S }}(row: u32, rows: u32, output: u32) -> Before {
    let n = min(output, OUTPUTS{{ S }} - 1u);
    var summand = {{ "bias[FIRST%d + n]" % S if BIAS else "0.0" }};
    if (ACCUMULATE) {
        summand += {{ Y }}[min(row, rows - 1u) * {{ WIDE }} + {{ FIRST }}n];
    }
    return Before(factors[row] * (1.0 / FACTOR), summand);
}

fn store{{ S }}({{ "split: u32, " if SPLITS > 1 }}row: u32, rows: u32, output: u32, sum: f32, before: Before) {
    if (row < rows && output < OUTPUTS{{ S }}) {
        {{ Y }}[{{ "(split * Y_ROWS + row)" if SPLITS > 1 else "row" }} * {{ WIDE }} + {{ FIRST }}output] = sum * before.factor + before.summand;
    }
}

fn piece{{ S }}(row: u32, i: u32) -> {{ "vec4<u32>" if F.values else "Stored%d" % S }} {
{% if F.values %}
    // A row may end within a step; the values read instead are multiplied by zero.
    return weight{{ S }}[unit_at{{ S }}(row, min(i, ROW_UNITS{{ S }} - 1u))];
{% else %}
    return stored{{ S }}(row, i);
{% endif %}
}

{% if F.column %}
// Unpack the scales of 4 inputs for a group of outputs.
fn put_scales{{ S }}(slot: u32, stored: StoredScales) {
    let f = unpacked_scales{{ S }}(stored);
    scale_w[slot] = FACTOR * f.scale;
{% if F.minimum %}
    minimum_w[slot] = FACTOR * f.minimum;
{% endif %}
}

{% endif %}
fn product{{ S }}(item: u32, row: u32, thread: Thread) {
    let rows = current.rows;
    let n0 = item {{ "/ %du " % SPLITS if SPLITS > 1 }}* {{ TILE_N }}u;
{% if SPLITS > 1 %}
    let split = item % {{ SPLITS }}u;
{% endif %}
    let steps = K_PADDED / {{ STEP }}u{{ " / %du" % SPLITS if SPLITS > 1 }};
    let begin = {{ "split * steps" if SPLITS > 1 else "0u" }};
    // The remainders change nothing, but show Tint that all indices of workgroup memory are in range.
    let t = thread.index % {{ THREADS }}u;
    let team = {{ "thread.subgroup % " ~ TEAMS ~ "u" if MATRICES else "t / " ~ SIZE ~ "u" }};
    let lane = {{ "thread.lane % " ~ SIZE ~ "u" if MATRICES else "t % " ~ SIZE ~ "u" }};
    let team_k = team / {{ TEAMS_MN }}u;
    let team_m = team % {{ TEAMS_MN }}u / {{ TEAMS_N }}u * {{ FM * M }}u;
    let team_n = team % {{ TEAMS_N }}u * {{ FN * N }}u;
{% if MATRICES %}
{% for i in range(FM) %}
{% for j in range(FN) %}
    var sums{{ i }}_{{ j }}: subgroup_matrix_result<f32, {{ N }}, {{ M }}>;
{% endfor %}
{% endfor %}
{% else %}
    var sums: array<f32, {{ FM * FN * ELEMENTS }}>;
{% endif %}
{% for i in range(X_LOADS) %}
    let x_slot{{ i }} = t + {{ i * THREADS }}u;
    let x_from{{ i }} = (row + x_slot{{ i }} / {{ STEP // 8 }}u) * (K_PADDED / 8u) + begin * {{ STEP // 8 }}u + x_slot{{ i }} % {{ STEP // 8 }}u;
    let x_to{{ i }} = x_slot{{ i }} / {{ STEP // 8 }}u * PITCH + x_slot{{ i }} % {{ STEP // 8 }}u * {{ 8 // UNIT }}u;
{% for a in range(AHEAD) %}
    var x_next{{ i }}_{{ a }} = x[x_from{{ i }} + {{ a * STEP // 8 }}u];
{% endfor %}
{% endfor %}
{% for i in range(W_LOADS) %}
    let w_slot{{ i }} = {{ "min(" if TILE_N * PIECES % THREADS }}t + {{ i * THREADS }}u{{ ", " ~ (TILE_N * PIECES - 1) ~ "u)" if TILE_N * PIECES % THREADS }};
    let w_row{{ i }} = min(n0 + w_slot{{ i }} / {{ PIECES }}u, OUTPUTS{{ S }} - 1u);
    let w_piece{{ i }} = w_slot{{ i }} % {{ PIECES }}u;
    let w_to{{ i }} = w_slot{{ i }} / {{ PIECES }}u * PITCH + w_piece{{ i }} * {{ PIECE // UNIT }}u;
{% for a in range(AHEAD) %}
    var w_next{{ i }}_{{ a }} = piece{{ S }}(w_row{{ i }}, (begin + {{ a }}u) * {{ PIECES }}u + w_piece{{ i }});
{% endfor %}
{% endfor %}
{% if F.column %}
    let s_slot = t % {{ W_SCALES }}u;
    let s_group = group{{ S }}(min(n0 + s_slot / {{ QUADS }}u * {{ F.group }}u, OUTPUTS{{ S }} - 1u));
    put_scales{{ S }}(s_slot, stored_scales{{ S }}(s_group, begin * {{ QUADS }}u + s_slot % {{ QUADS }}u));
{% for a in range(AHEAD) %}
    var s_next_{{ a }} = stored_scales{{ S }}(s_group, (begin + min({{ a + 1 }}u, steps - 1u)) * {{ QUADS }}u + s_slot % {{ QUADS }}u);
{% endfor %}
    workgroupBarrier();
{% endif %}
    for (var step = 0u; step < steps; step{{ " += %du" % AHEAD if AHEAD > 1 else "++" }}) {
{% for a in range(AHEAD) %}
{% set now = "step + %du" % a if a else "step" %}
        {
{% for i in range(X_LOADS) %}
{{ put_words("tile_x", "x_to%d" % i, "x_next%d_%d" % (i, a)) }}
{% endfor %}
{% for i in range(W_LOADS) %}
        {
{% if HALVES_ONLY %}
{{ put_words("tile_w", "w_to%d" % i, "w_next%d_%d" % (i, a)) }}
{% elif F.values %}
            let v0 = vec4<f16>(FACTOR * quad_{{ F.values }}(w_next{{ i }}_{{ a }}.xy));
            let v1 = vec4<f16>(FACTOR * quad_{{ F.values }}(w_next{{ i }}_{{ a }}.zw));
{% elif F.column %}
            let codes0 = first_codes{{ S }}(w_next{{ i }}_{{ a }}.codes);
            let codes1 = last_codes{{ S }}(w_next{{ i }}_{{ a }}.codes);
            let s_at = w_slot{{ i }} / {{ PIECES * F.group }}u * {{ QUADS }}u + w_piece{{ i }} * 8u;
{% for c in range(8) %}
            let v{{ c }} = vec4<f16>(scale_w[s_at + {{ c }}u] * vec4<f32>(unpack4xI8(codes{{ c // 4 }}[{{ c % 4 }}])){{ " - minimum_w[s_at + " ~ c ~ "u]" if F.minimum }});
{% endfor %}
{% else %}
            let w = dequantized{{ S }}(w_next{{ i }}_{{ a }}, w_row{{ i }}, (begin + {{ now }}) * {{ PIECES }}u + w_piece{{ i }});
{% for c in range(8) %}
            let v{{ c }} = vec4<f16>(w[{{ c }}]);
{% endfor %}
{% endif %}
{% for c in range(0 if HALVES_ONLY else PIECE // UNIT) %}
            tile_w[w_to{{ i }} + {{ c }}u] = {{ "words(v%d, v%d)" % (2 * c, 2 * c + 1) if MATRICES else "v%d.%s" % (c // 4, "xyzw"[c % 4]) }};
{% endfor %}
        }
{% endfor %}
        workgroupBarrier();
        let next = min({{ now }} + {{ AHEAD }}u, steps - 1u);
{% if F.column %}
        put_scales{{ S }}(s_slot, s_next_{{ a }});
        s_next_{{ a }} = stored_scales{{ S }}(s_group, (begin + min({{ now }} + {{ AHEAD + 1 }}u, steps - 1u)) * {{ QUADS }}u + s_slot % {{ QUADS }}u);
{% endif %}
{% for i in range(X_LOADS) %}
        x_next{{ i }}_{{ a }} = x[x_from{{ i }} + next * {{ STEP // 8 }}u];
{% endfor %}
{% for i in range(W_LOADS) %}
        w_next{{ i }}_{{ a }} = piece{{ S }}(w_row{{ i }}, (begin + next) * {{ PIECES }}u + w_piece{{ i }});
{% endfor %}
        let x_at = team_m * PITCH + team_k * {{ DEPTH // UNIT }}u;
        let w_at = team_n * PITCH + team_k * {{ DEPTH // UNIT }}u;
{% if MATRICES %}
{% for k in range(0, DEPTH, K) %}
        {
{% for i in range(FM) %}
            let a{{ i }} = subgroupMatrixLoad<subgroup_matrix_left<f16, {{ K }}, {{ M }}>, row_major>(&tile_x, x_at + {{ i * M }}u * PITCH + {{ k // UNIT }}u, PITCH);
{% endfor %}
{% for j in range(FN) %}
            let b{{ j }} = subgroupMatrixLoad<subgroup_matrix_right<f16, {{ N }}, {{ K }}>, col_major>(&tile_w, w_at + {{ j * N }}u * PITCH + {{ k // UNIT }}u, PITCH);
{% for i in range(FM) %}
            sums{{ i }}_{{ j }} = subgroupMatrixMultiplyAccumulate(a{{ i }}, b{{ j }}, sums{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
        }
{% endfor %}
{% else %}
        for (var e = 0u; e < {{ FM * FN * ELEMENTS }}u; e++) {
            let at = e % {{ ELEMENTS }}u * {{ SIZE }}u + lane;
            let a = x_at + (e / {{ FN * ELEMENTS }}u * {{ M }}u + at / {{ N }}u) * PITCH;
            let b = w_at + (e / {{ ELEMENTS }}u % {{ FN }}u * {{ N }}u + at % {{ N }}u) * PITCH;
            for (var k = 0u; k < {{ DEPTH }}u; k++) {
                sums[e] += f32(tile_x[a + k]) * f32(tile_w[b + k]);
            }
        }
{% endif %}
        workgroupBarrier();
        }
{% endfor %}
    }
{% for i in range(FM) %}
{% for j in range(0, FN, AT_ONCE) %}
    {
        // All loads come before the first store, which they would otherwise wait for one by one.
        let place = team_k * {{ SIZE }}u + lane;
        let first_row = row + team_m + {{ i * M }}u;
        let output = n0 + team_n + {{ j * N }}u;
{% for e in range(M * WIDTH // STRIDE) %}
        let before{{ e }} = before_{{ S }}(first_row + (place + {{ e * STRIDE }}u) / {{ WIDTH }}u, rows, output + (place + {{ e * STRIDE }}u) % {{ WIDTH }}u);
{% endfor %}
{% if RESULTS == "tile_w" %}
{% for b in range(AT_ONCE) %}
        subgroupMatrixStore<row_major>(&tile_w, team * {{ M * WIDTH // 4 }}u + {{ b * N // 4 }}u, sums{{ i }}_{{ j + b }}, {{ WIDTH // 4 }}u);
{% endfor %}
{% elif MATRICES %}
        subgroupMatrixStore<row_major>(&results, team * {{ M * N }}u, sums{{ i }}_{{ j }}, {{ N }}u);
{% else %}
        for (var e = 0u; e < {{ ELEMENTS }}u; e++) {
            results[team * {{ M * N }}u + {{ SIZE }}u * e + lane] = sums[{{ (i * FN + j) * ELEMENTS }}u + e];
        }
{% endif %}
        workgroupBarrier();
        let first = (team % {{ TEAMS_MN }}u) * {{ M * WIDTH }}u + place;
{% for e in range(M * WIDTH // STRIDE) %}
        store{{ S }}({{ "split, " if SPLITS > 1 }}first_row + (place + {{ e * STRIDE }}u) / {{ WIDTH }}u, rows, output + (place + {{ e * STRIDE }}u) % {{ WIDTH }}u, {% for k in range(TEAMS_K) %}{{ " + " if k }}{{ result("first + %du" % (k * TEAMS_MN * M * WIDTH + e * STRIDE)) }}{% endfor %}, before{{ e }});
{% endfor %}
        workgroupBarrier();
    }
{% endfor %}
{% endfor %}
}

{% endfor %}
fn phase(item: u32, row: u32, thread: Thread) {
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% if not loop.last %}
    let items{{ S }} = {{ "items%d + " % (S - 1) if S }}(OUTPUTS{{ S }} + {{ TILE_N - 1 }}u) / {{ TILE_N }}u * {{ SPLITS }}u;
    if (item < items{{ S }}) {
        product{{ S }}(item{{ " - items%d" % (S - 1) if S }}, row, thread);
        return;
    }
{% else %}
    product{{ S }}(item{{ " - items%d" % (S - 1) if S }}, row, thread);
{% endif %}
{% endfor %}
}
