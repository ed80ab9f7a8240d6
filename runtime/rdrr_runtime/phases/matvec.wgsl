// One token row times one or several matrices: y = f(W in(x)), weights stored by rows of K.
//
// in   plain    in(x) = x
//      quantized the same, already int8 (see INT8_OUT)
//      norm     in(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain)
//      combine  in(x)[h] = sum_s e^(m_s - m) x[h, s] / sum_s e^(m_s - m) l_s, the parts of split
//               attention with (m_s, l_s) = stats[h, s]; parts without keys come last
// f    store    y[n] = v[n] (+ bias[n]); the matrices' outputs follow each other
//      add      y[n] += v[n] (+ bias[n])
//      gate     y[n] = act(v_gate[n]) v_up[n], gate and up one matrix of 2 N rows, or two of N;
//               with INT8_OUT as int8 words, and (scale, bits of the sum) of each 16 in y_scales
//      best     y[n] = v[n], and the largest of each workgroup with the lowest n goes to best
//
// x        {{ VALUE }} [K], or f32 [heads, SPLITS, HEAD_DIM] for combine
// weight   words of type {{ WEIGHTS }} [N, ROW_WORDS]
// y        {{ VALUE }} [N], f32 for best
//
// A team of T threads computes one row at a time ({{ PAIRS }} of gate and up each for gate), and the
// workgroups stride over all rows. Where subgroups have T threads a team is one of them; elsewhere
// it sums through workgroup memory. Each workgroup stages in(x) once{% if INT8 %}, as int8{% endif %}. Sums are f32{% if INT8 %} over exact int8 products{% endif %}.
{% set SEGMENTS = WEIGHTS.split(",") %}
{% set X = {"quantized": "u32", "combine": "f32"}.get(INPUT, VALUE) %}
{% set Y = "u32" if INT8_OUT else "f32" if OUTPUT == "best" else VALUE %}
{% set bind = namespace(n=0) %}
{% macro storage(name, type, access="read") %}
@group(0) @binding({{ bind.n }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% set bind.n = bind.n + 1 %}
{% endmacro %}
{{ storage("x", "vec4<" ~ X ~ ">") -}}
{% if INPUT == "quantized" %}
{{ storage("x_scales", "vec2<f32>") -}}
{% endif %}
{% if INPUT == "norm" %}
{{ storage("gain", "vec4<f32>") -}}
{% endif %}
{% if INPUT == "combine" %}
{{ storage("stats", "vec2<f32>") -}}
{% endif %}
{% for type in SEGMENTS %}
{{ storage("weight" ~ loop.index0, "Word" ~ loop.index0) -}}
{% endfor %}
{% if BIAS %}
{{ storage("bias", "f32") -}}
{% endif %}
{{ storage("y", Y, "read_write") -}}
{% if OUTPUT == "gate" and INT8_OUT %}
{{ storage("y_scales", "vec2<f32>", "read_write") -}}
{% endif %}
{% if OUTPUT == "best" %}
{{ storage("best", "Candidate", "read_write") -}}
{% endif %}

{% include "snippets/value.wgsl" %}
override WG: u32;
override T: u32;
override K: u32;
override K_STAGED: u32;          // K rounded up to what whole units cover, a multiple of 32
override STRIDE: u32;            // workgroups of the launch
override STEPS: u32;             // row groups of each team
{% for type in SEGMENTS %}
override N{{ loop.index0 }}: u32;
override UNITS{{ loop.index0 }}: u32;
override TRIPS{{ loop.index0 }}: u32;   // of a team along a row
override EXACT{{ loop.index0 }}: bool;  // all its threads have a unit in every trip
override ROW_WORDS{{ loop.index0 }}: u32;
{% endfor %}
{% include "snippets/one_row_overrides.wgsl" %}
override TEAMS = WG / T;

{% include "snippets/thread.wgsl" %}

{% include "snippets/stage_" ~ ("int8" if INT8 else "f32") ~ ".wgsl" %}
{% for type in SEGMENTS %}
{% set S = loop.index0 %}
{% include "snippets/dot_" ~ type ~ ("_int8" if INT8 else "") ~ ".wgsl" %}
{% endfor %}

{% if OUTPUT == "gate" %}
alias Sums = vec{{ 2 * PAIRS }}<f32>;  // of gate and up, in turn
{% else %}
alias Sums = f32;
{% endif %}
var<workgroup> partial: array<Sums, WG>;
{% if OUTPUT == "best" %}
{% include "snippets/candidate.wgsl" %}
{% endif %}
{% if INT8_OUT %}
var<workgroup> gated: array<f32, TEAMS * {{ PAIRS }}u>;
{% endif %}

{% if INPUT == "norm" %}
var<workgroup> squares: array<f32, WG>;

// Leaves the sums of squares for `mean_square`, which may be called after a barrier.
fn keep_squares(sum: f32, thread: Thread) {
{% if SUBGROUPS %}
    let total = subgroupAdd(sum);
    if (thread.lane == 0u) {
        squares[thread.subgroup] = total;
    }
{% else %}
    squares[thread.index] = sum;
    workgroupBarrier();
    if (thread.index < 16u) {
        var total = 0.0;
        for (var i = thread.index; i < WG; i += 16u) {
            total += squares[i];
        }
        squares[thread.index] = total;
    }
{% endif %}
}

fn mean_square(thread: Thread) -> f32 {
    var total = 0.0;
    for (var i = 0u; i < {{ "thread.subgroups" if SUBGROUPS else "16u" }}; i++) {
        total += squares[i];
    }
    return total / f32(K);
}
{% endif %}

{% include "snippets/one_row_input.wgsl" %}

{% if OUTPUT == "gate" %}
{% include "snippets/activate.wgsl" %}

{% endif %}
{% include "snippets/team_sum.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
{% if SUBGROUPS %}
    @builtin(subgroup_size) subgroup_size: u32,
{% endif %}
    thread: Thread,
) {
    var team = thread.index / T;
    var lane = thread.index % T;
{% if SUBGROUPS %}
    if (subgroup_size == T) {
        team = thread.subgroup;
        lane = thread.lane;
    }
{% endif %}
{% if INPUT == "combine" %}
    prepare(thread.index);
{% endif %}
    let squared = stage(thread, subgroup_size);
{% if INPUT == "norm" %}
    keep_squares(squared, thread);
    workgroupBarrier();
    let factor = inverseSqrt(mean_square(thread) + EPS);
{% else %}
    workgroupBarrier();
    let factor = 1.0;
{% endif %}
{% if OUTPUT == "best" %}
    var top = Candidate(-3.4028234663852886e38, 0xffffffffu);
{% endif %}
    for (var step = 0u; step < STEPS; step++) {
        let first = ((step * STRIDE + wid.x) * TEAMS + team) * {{ PAIRS }}u;
        var acc = Sums();
{% if OUTPUT == "gate" %}
        let total = N0{% if SEGMENTS | length == 1 %} / 2u{% endif %};
        if (first < total) {
            for (var trip = 0u; trip < TRIPS0; trip++) {
                let unit = trip * T + lane;
                if (!EXACT0 && unit >= UNITS0) {
                    continue;
                }
{% for pair in range(PAIRS) %}
                let row{{ pair }} = min(first + {{ pair }}u, total - 1u);
                acc.{{ "xz"[pair] }} += dot_unit0(row{{ pair }} * ROW_WORDS0, unit);
{% if SEGMENTS | length == 1 %}
                acc.{{ "yw"[pair] }} += dot_unit0((total + row{{ pair }}) * ROW_WORDS0, unit);
{% else %}
                acc.{{ "yw"[pair] }} += dot_unit1(row{{ pair }} * ROW_WORDS1, unit);
{% endif %}
{% endfor %}
            }
        }
        let sum = factor * team_sum(acc, thread, subgroup_size, team);
{% if INT8_OUT %}
        // The teams' rows of a step are whole groups of 16, so each group has one scale.
        if (lane < {{ PAIRS }}u) {
            gated[team * {{ PAIRS }}u + lane] = activate(sum[2u * lane]) * sum[2u * lane + 1u];
        }
        workgroupBarrier();
        let word = (step * STRIDE + wid.x) * (TEAMS * {{ PAIRS }}u / 4u) + thread.index;
        if (thread.index < TEAMS * {{ PAIRS }}u / 4u && 4u * word < total) {
            let group = thread.index / 4u * 16u;
            var most = 0.0;
            for (var i = 0u; i < 16u; i++) {
                most = max(most, abs(gated[group + i]));
            }
            let inverse = select(0.0, 127.0 / most, most > 0.0);
            let at = 4u * thread.index;
            let v = vec4<f32>(gated[at], gated[at + 1u], gated[at + 2u], gated[at + 3u]);
            y[word] = pack4xI8(vec4<i32>(round(v * inverse)));
            if (word % 4u == 0u) {
                var all = 0i;
                for (var i = 0u; i < 16u; i++) {
                    all += i32(round(gated[group + i] * inverse));
                }
                y_scales[word / 4u] = vec2<f32>(most / 127.0, bitcast<f32>(all));
            }
        }
        workgroupBarrier();
{% else %}
        if (lane < {{ PAIRS }}u && first + lane < total) {
            y[first + lane] = value(activate(sum[2u * lane]) * sum[2u * lane + 1u]);
        }
{% endif %}
{% else %}
        var total = 0u;
{% for type in SEGMENTS %}
{% set s = loop.index0 %}
        if (first >= total && first < total + N{{ s }}) {
            for (var trip = 0u; trip < TRIPS{{ s }}; trip++) {
                let unit = trip * T + lane;
                if (!EXACT{{ s }} && unit >= UNITS{{ s }}) {
                    continue;
                }
                acc += dot_unit{{ s }}((first - total) * ROW_WORDS{{ s }}, unit);
            }
        }
        total += N{{ s }};
{% endfor %}
        let sum = factor * team_sum(acc, thread, subgroup_size, team);
        if (lane == 0u && first < total) {
            var result = sum;
{% if BIAS %}
            result += bias[first];
{% endif %}
{% if OUTPUT == "add" %}
            result += f32(y[first]);
{% endif %}
            y[first] = {{ "value(result)" if Y == VALUE else "result" }};
        }
{% if OUTPUT == "best" %}
        if (first < total) {
            top = better(top, Candidate(sum, first));
        }
{% endif %}
{% endif %}
    }
{% if OUTPUT == "best" %}
    let winner = best_of_workgroup(top, thread.index);
    if (thread.index == 0u) {
        best[wid.x] = winner;
    }
{% endif %}
}
