{% if GATE %}
// y[r, s, n] = act(sum_k W0[e, n, k] x[r, k]) sum_k W1[e, n, k] x[r, k], e the s-th expert of row r.
{% else %}
// y[r, n] = sum_s share sum_k W0[e, n, k] x[r, s, k] (+ y), e and share the s-th route of row r.
{% endif %}
//
// current  Step
// routes   Route [rows, TOP_K]
// x        vec4<u32> {{ "[rows, 5, UNITS]" if GATE else "[rows, TOP_K, 5, UNITS]" }} as int8_rows leaves it
// weight   N rows of each of EXPERTS, one of FORMATS each, see formats.py
// y        f32 {{ "[rows, TOP_K, N]" if GATE else "[rows, N]" }}
//
// A team of T threads computes {{ "an output" if OUTPUTS == 1 else OUTPUTS ~ " outputs" }} of {{ "a route, each with its gate" if GATE else "a row, over its routes" }}; its threads share
// the groups of 64 inputs{{ "" if GATE else " of all routes" }}. Products are exact in i32, their sums f32.
{% set MATRICES = FORMATS | length %}
{% include "snippets/step.wgsl" %}
{% include "snippets/route.wgsl" %}
@group(0) @binding(0) var<storage, read> current: Step;
@group(0) @binding(1) var<storage, read> routes: array<Route>;
@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
{% for F in FORMATS %}
@group(0) @binding({{ 4 + loop.index0 }}) var<storage, read> weight{{ loop.index0 }}: array<vec4<u32>>;
{% endfor %}

override WG: u32;
override T: u32;
override N: u32;
override UNITS: u32;             // of 64 inputs of an expert, zeros after K included
override EXPERTS: u32;
override TOP_K: u32;
override ACCUMULATE: bool = false;
{% include "snippets/weights.wgsl" %}
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% include "snippets/unit.wgsl" %}

{% endfor %}
override TEAMS = WG / T;

{% include "snippets/thread.wgsl" %}

{% if GATE %}
{% include "snippets/activate.wgsl" %}

{% endif %}
{% set WIDTH = MATRICES * OUTPUTS %}
alias Sums = {{ "f32" if WIDTH == 1 else "vec" ~ WIDTH ~ "<f32>" }};  // of gate and up, in turn
var<workgroup> partial: array<Sums, WG>;

{% include "snippets/int8_sums.wgsl" %}

{% include "snippets/team_sum.wgsl" %}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
{% if SUBGROUPS %}
    @builtin(subgroup_size) subgroup_size: u32,
{% endif %}
    thread: Thread,
) {
    let row = wid.z{{ " / TOP_K" if GATE }};
    if (row >= current.rows) {
        return;
    }
    var team = thread.index / T;
    var lane = thread.index % T;
{% if SUBGROUPS %}
    if (subgroup_size >= T) {
        team = (thread.subgroup * subgroup_size + thread.lane) / T;
        lane = thread.lane % T;
    }
{% endif %}
    let first = ((wid.x + wid.y * groups.x) * TEAMS + team) * {{ OUTPUTS }}u;
    var acc = Sums();
{% if GATE %}
    let expert = min(routes[wid.z].expert, EXPERTS - 1u) * N;
    for (var unit = lane; unit < UNITS; unit += T) {
        let place = row * 5u * UNITS + unit;
{% else %}
    for (var i = lane; i < TOP_K * UNITS; i += T) {
        let route = row * TOP_K + i / UNITS;
        let unit = i % UNITS;
        let expert = min(routes[route].expert, EXPERTS - 1u) * N;
        let place = route * 5u * UNITS + unit;
        var sums = Sums();
{% endif %}
        let c0 = x[place];
        let c1 = x[place + UNITS];
        let c2 = x[place + 2u * UNITS];
        let c3 = x[place + 3u * UNITS];
        let scale = bitcast<vec4<f32>>(x[place + 4u * UNITS]);
{% for o in range(OUTPUTS) %}
        let output{{ o }} = expert + min(first + {{ o }}u, N - 1u);
{% for m in range(MATRICES) %}
        let raw{{ m }}_{{ o }} = unit{{ m }}(output{{ o }}, unit);
{% include "snippets/row_registers.wgsl" %}
{% set to = ("acc" if GATE else "sums") ~ ("" if WIDTH == 1 else "." ~ "xyzw"[o * (MATRICES) + m]) %}
{% include "snippets/row_products.wgsl" %}
{% endfor %}
{% endfor %}
{% if not GATE %}
        acc += routes[route].share * sums;
{% endif %}
    }
    let total = team_sum(acc, thread, subgroup_size, team);
    if (lane != 0u) {
        return;
    }
{% for o in range(OUTPUTS) %}
    if (first + {{ o }}u < N) {
        let at = wid.z * N + first + {{ o }}u;
{% if GATE %}
        y[at] = activate(total[{{ 2 * o }}]) * total[{{ 2 * o + 1 }}];
{% else %}
        let result = total{{ "[" ~ o ~ "]" if WIDTH > 1 }};
        if (ACCUMULATE) {
            y[at] += result;
        } else {
            y[at] = result;
        }
{% endif %}
    }
{% endfor %}
}
