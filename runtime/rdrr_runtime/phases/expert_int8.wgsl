{% set GATE = ACT != "" %}
{% if GATE %}
// y[r, s, n] = act(sum_k W0[e, n, k] x[r, k]) sum_k W1[e, n, k] x[r, k], e the s-th expert of row r.
{% else %}
// y[r, n] = sum_s w sum_k W0[e, n, k] x[r, s, k] (+ y), e the s-th expert of row r and w its weight.
{% endif %}
//
// routes   Route [rows, TOP_K]
// x        vec4<u32> {{ "[rows, 5, UNITS]" if GATE else "[rows, TOP_K, 5, UNITS]" }} as int8_rows leaves it
// weight   N rows of each of EXPERTS, one of FORMATS each, see formats.py
// y        f32 {{ "[rows, TOP_K, N]" if GATE else "[rows, N]" }}
//
// An item is TEAMS outputs of {{ "a route, each with its gate" if GATE else "a row, over its routes" }}. A team of T threads computes one; its threads
// split the groups of 64 inputs{{ "" if GATE else " of all routes" }}. Products are exact in i32, their sums f32.
{% include "snippets/route.wgsl" %}
var<storage, read> routes: array<Route>;
var<storage, read> x: array<vec4<u32>>;
var<storage, read_write> y: array<f32>;
{% for F in FORMATS %}
var<storage, read> weight{{ loop.index0 }}: array<vec4<u32>>;
{% endfor %}

override T: u32;
override N: u32;
override UNITS: u32;             // of 64 inputs of an expert, zeros after K included
override EXPERTS: u32;
override TOP_K: u32;
override ACCUMULATE: bool;
{% include "snippets/weights.wgsl" %}
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% include "snippets/unit.wgsl" %}

{% endfor %}
override TEAMS = WG / T;

{% if GATE %}
{% include "snippets/activate.wgsl" %}

{% endif %}
alias Sums = {{ "vec2<f32>" if GATE else "f32" }};{{ "  // of gate and up" if GATE }}
var<workgroup> partial: array<Sums, WG>;

{% include "snippets/int8_sums.wgsl" %}

{% include "snippets/team_sum.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread, subgroup_size: u32) {
    var team = thread.index / T;
    var lane = thread.index % T;
{% if SUBGROUPS %}
    if (subgroup_size >= T) {
        team = (thread.subgroup * subgroup_size + thread.lane) / T;
        lane = thread.lane % T;
    }
{% endif %}
    var acc = Sums();
{% if GATE %}
    let groups = (N + TEAMS - 1u) / TEAMS;  // items of a route
    let n = item % groups * TEAMS + team;
    let route = row * TOP_K + item / groups;
    let at = route * N + n;
    let output0 = min(routes[route].expert, EXPERTS - 1u) * N + min(n, N - 1u);
    for (var unit = lane; unit < UNITS; unit += T) {
        let start = row * 5u * UNITS + unit;
{% else %}
    let n = item * TEAMS + team;
    let at = row * N + n;
    for (var i = lane; i < TOP_K * UNITS; i += T) {
        let route = row * TOP_K + i / UNITS;
        let unit = i % UNITS;
        let output0 = min(routes[route].expert, EXPERTS - 1u) * N + min(n, N - 1u);
        let start = route * 5u * UNITS + unit;
        var sums = Sums();
{% endif %}
        let c0 = x[start];
        let c1 = x[start + UNITS];
        let c2 = x[start + 2u * UNITS];
        let c3 = x[start + 3u * UNITS];
        let scale = bitcast<vec4<f32>>(x[start + 4u * UNITS]);
{% set o = 0 %}
{% for F in FORMATS %}
{% set m = loop.index0 %}
{% set to = "acc." ~ "xy"[m] if GATE else "sums" %}
        let raw{{ m }}_0 = unit{{ m }}(output0, unit);
{% include "snippets/row_registers.wgsl" %}
{% include "snippets/row_products.wgsl" %}
{% endfor %}
{% if not GATE %}
        acc += routes[route].weight * sums;
{% endif %}
    }
    let total = team_sum(acc, thread, subgroup_size, team);
    if (lane != 0u || n >= N) {
        return;
    }
{% if GATE %}
    y[at] = activate(total.x) * total.y;
{% else %}
    if (ACCUMULATE) {
        y[at] += total;
    } else {
        y[at] = total;
    }
{% endif %}
}
