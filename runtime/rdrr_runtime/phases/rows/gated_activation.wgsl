{% set ROUTED = BIAS or SCALED %}
// y = f(GATE_SCALE gate, up), where f is {{ ACT }} (snippets/activate.wgsl){% if SCALED %}, after gate and up were multiplied by
// the weight of each route{% endif %}{% if BIAS %}, after the biases of each route's expert were added to gate and up{% endif %}

//
{% if FUSED %}
// gate_up   {{ VALUE }} [rows, PAIRS, 2 WIDTH / PAIRS]: gate, then up
{% else %}
// gate      {{ VALUE }} [rows, WIDTH]
// up        {{ VALUE }} [rows, UP_PARTS, WIDTH], of which part UP_PART is read
{% endif %}
// y         {{ VALUE }} [rows, WIDTH]
{% if ROUTED %}
// routes    Route [rows, TOP_K]; a row holds WIDTH / TOP_K elements of each route
{% endif %}
{% if BIAS %}
// bias      f32 [2, EXPERTS, WIDTH / TOP_K]: of the gates, then of the ups
{% endif %}
//
// An item is 4 WG elements of a row, 4 for each thread. Computes in f32.
{% include "snippets/value.wgsl" %}
var<storage, read_write> y: array<vec4<{{ VALUE }}>>;
{% if FUSED %}
var<storage, read> gate_up: array<vec4<{{ VALUE }}>>;
{% else %}
var<storage, read> gate: array<vec4<{{ VALUE }}>>;
var<storage, read> up: array<vec4<{{ VALUE }}>>;
{% endif %}
{% if ROUTED %}
{% include "snippets/route.wgsl" %}
var<storage, read> routes: array<Route>;
{% if BIAS %}
var<storage, read> bias: array<vec4<f32>>;
{% endif %}

override EXPERTS: u32;
override TOP_K: u32;
{% endif %}

override WIDTH: u32;
override GATE_SCALE: f32;
{% if FUSED %}
override PAIRS: u32;
{% else %}
override UP_PARTS: u32;
override UP_PART: u32;
{% endif %}

{% include "snippets/activate.wgsl" %}

fn phase(item: u32, row: u32, thread: Thread) {
    let words = WIDTH / 4u;
    let i = item * WG + thread.index;
    if (i >= words) {
        return;
    }
{% if FUSED %}
    let half = words / PAIRS;
    let first = (row * PAIRS + i / half) * 2u * half + i % half;
    var g = GATE_SCALE * vec4<f32>(gate_up[first]);
    var u = vec4<f32>(gate_up[first + half]);
{% else %}
    var g = GATE_SCALE * vec4<f32>(gate[row * words + i]);
    var u = vec4<f32>(up[(row * UP_PARTS + UP_PART) * words + i]);
{% endif %}
{% if ROUTED %}
    let own = words / TOP_K;
    let route = routes[row * TOP_K + i / own];
{% endif %}
{% if SCALED %}
    g *= route.weight;
    u *= route.weight;
{% endif %}
{% if BIAS %}
    let at = route.expert * own + i % own;
    g += bias[at];
    u += bias[EXPERTS * own + at];
{% endif %}
    y[row * words + i] = value4(vec4<f32>(
        gated_activation(g.x, u.x),
        gated_activation(g.y, u.y),
        gated_activation(g.z, u.z),
        gated_activation(g.w, u.w),
    ));
}
