// One token row times one or several matrices of turned blocks: y = f(W in(x)).
//
// in(x) and f are those of matvec.wgsl (without its int8 hand-over).
//
// x        f32 [K], or [heads, SPLITS, HEAD_DIM] for combine
// weight   words of turned {{ WEIGHTS }}, see turn_blocks.wgsl
// y        f32 [N]
//
// Blocks stored by columns scale groups of outputs at one k. So for each group the input is scaled
// first, a[k] = x[k] scale[k], put into int8 in workgroup memory, and multiplied by the codes of
// {{ ROWS }} outputs of the group; the minimums add up to one sum for all of these:
//
//     y[n] = sum_k a[k] code[n, k] - sum_k x[k] minimum[k]
//
// A slot is {{ ROWS }} outputs of one group ({{ ROWS }} of gate and as many of up for gate); a workgroup takes every
// STRIDE-th. A team of T threads computes {{ PER_TEAM }} of them. Sums are f32 over exact int8 products.
{% set SEGMENTS = WEIGHTS.split(",") %}
{% set GATE = OUTPUT == "gate" %}
{% set STAGES = 2 if GATE else 1 %}
{% set bind = namespace(n=0) %}
{% macro storage(name, type, access="read") %}
@group(0) @binding({{ bind.n }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% set bind.n = bind.n + 1 %}
{% endmacro %}
{{ storage("x", "vec4<f32>") -}}
{% if INPUT == "norm" %}
{{ storage("gain", "vec4<f32>") -}}
{% endif %}
{% if INPUT == "combine" %}
{{ storage("stats", "vec2<f32>") -}}
{% endif %}
{% for type in SEGMENTS %}
{{ storage("weight" ~ loop.index0, "vec4<u32>") -}}
{% endfor %}
{% if BIAS %}
{{ storage("bias", "f32") -}}
{% endif %}
{{ storage("y", "f32", "read_write") -}}
{% if OUTPUT == "best" %}
{{ storage("best", "Candidate", "read_write") -}}
{% endif %}

override WG: u32;
override T: u32;
override K: u32;
override K_STAGED: u32;          // K rounded up to whole units, as in the turned rows
override STAGED_WORDS: u32;      // K_STAGED / 16 for each stage
override STRIDE: u32;            // workgroups of the launch
override STEPS: u32;             // slots of each workgroup
override TRIPS: u32;             // of a team along a row
{% for type in SEGMENTS %}
override N{{ loop.index0 }}: u32;
override SLOTS{{ loop.index0 }}: u32;
override FACTORS{{ loop.index0 }}: u32;  // where the factors begin, in words of 16 bytes
{% endfor %}
{% include "snippets/one_row_overrides.wgsl" %}

{% include "snippets/thread.wgsl" %}

var<workgroup> staged: array<vec4<u32>, STAGED_WORDS>;
var<workgroup> scales: array<f32, STAGED_WORDS>;

{% include "snippets/one_row_input.wgsl" %}
{% set S = 0 %}
{% include "snippets/dot16.wgsl" %}
{% for type in SEGMENTS %}
{% set S = loop.index0 %}
{% include "snippets/turned_" ~ type ~ ".wgsl" %}
{% endfor %}
{% include "snippets/stage_turned.wgsl" %}
{% if GATE %}
{% include "snippets/activate.wgsl" %}

{% endif %}
{% set WIDTH = PER_TEAM * STAGES %}
alias Sums = {{ "f32" if WIDTH == 1 else "vec" ~ WIDTH ~ "<f32>" }};  // gate's rows, then up's
var<workgroup> partial: array<Sums, WG>;
{% include "snippets/team_sum.wgsl" %}
{% if OUTPUT == "best" %}
{% include "snippets/candidate.wgsl" %}
{% endif %}

fn unit_sum(row: u32, unit: u32, segment: u32, stage: u32) -> f32 {
    let at = stage * (K_STAGED / 16u) + 4u * unit;
    let by16 = vec4<f32>(scales[at], scales[at + 1u], scales[at + 2u], scales[at + 3u]);
{% for type in SEGMENTS %}
    if (segment == {{ loop.index0 }}u) {
        return dot(by16, products{{ loop.index0 }}(row, unit, at));
    }
{% endfor %}
    return 0.0;
}

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
{% if OUTPUT == "best" %}
    var top = Candidate(-3.4028234663852886e38, 0xffffffffu);
{% endif %}
    for (var step = 0u; step < STEPS; step++) {
        let slot = step * STRIDE + wid.x;
        var first_slot = 0u;
        var first_output = 0u;
{% for type in SEGMENTS %}
{% if not (GATE and loop.index0 == 1) %}
{% set s = loop.index0 %}
        if (slot >= first_slot && slot < first_slot + SLOTS{{ s }}) {
            let row = (slot - first_slot) * {{ ROWS }}u + team * {{ PER_TEAM }}u;
{% if GATE %}
{% set two = SEGMENTS | length == 2 %}
            let outputs = N0{{ "" if two else " / 2u" }};
            let up = {{ "0u" if two else "outputs" }};
            stage(thread, subgroup_size, 0u, (slot - first_slot) * {{ ROWS }}u, 0u);
            stage(thread, subgroup_size, {{ "1u" if two else "0u" }}, up + (slot - first_slot) * {{ ROWS }}u, 1u);
{% else %}
            let outputs = N{{ s }};
            stage(thread, subgroup_size, {{ s }}u, (slot - first_slot) * {{ ROWS }}u, 0u);
{% endif %}
            workgroupBarrier();
            let staged_sums = kept_sums(thread);
{% if INPUT == "norm" %}
            let factor = inverseSqrt(staged_sums.x / {{ "(2.0 * f32(K))" if GATE else "f32(K)" }} + EPS);
{% else %}
            let factor = 1.0;
{% endif %}
            var acc = Sums();
            for (var trip = 0u; trip < TRIPS; trip++) {
                let unit = trip * T + lane;
                if (64u * unit >= K_STAGED) {
                    continue;
                }
{% for r in range(PER_TEAM) %}
{% set at = "" if WIDTH == 1 else "." ~ "xyzw"[r] %}
                acc{{ at }} += unit_sum(row + {{ r }}u, unit, {{ s }}u, 0u);
{% if GATE %}
                acc.{{ "xyzw"[PER_TEAM + r] }} += unit_sum(up + row + {{ r }}u, unit, {{ "1u" if two else "0u" }}, 1u);
{% endif %}
{% endfor %}
            }
            let sum = team_sum(acc, thread, subgroup_size, team);
{% for r in range(PER_TEAM) %}
{% set at = "" if WIDTH == 1 else "." ~ "xyzw"[r] %}
            if (lane == {{ r }}u && row + {{ r }}u < outputs) {
                let n = first_output + row + {{ r }}u;
{% if GATE %}
                let gate = factor * (sum{{ at }} - staged_sums.y);
                y[n] = activate(gate) * (factor * (sum.{{ "xyzw"[PER_TEAM + r] }} - staged_sums.z));
{% else %}
                var value = factor * (sum{{ at }} - staged_sums.y);
{% if OUTPUT == "best" %}
                top = better(top, Candidate(value, n));
{% endif %}
{% if BIAS %}
                value += bias[n];
{% endif %}
{% if OUTPUT == "add" %}
                value += y[n];
{% endif %}
                y[n] = value;
{% endif %}
            }
{% endfor %}
            workgroupBarrier();  // all have read what the next slot overwrites
        }
        first_slot += SLOTS{{ s }};
        first_output += N{{ s }};
{% endif %}
{% endfor %}
    }
{% if OUTPUT == "best" %}
    let winner = best_of_workgroup(top, thread.index);
    if (thread.index == 0u) {
        best[wid.x] = winner;
    }
{% endif %}
}
