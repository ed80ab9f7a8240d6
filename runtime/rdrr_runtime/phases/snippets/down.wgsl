{# The end of a gated product with OUTPUT "down": D is the number of the last matrix. #}
{% set D = MATRICES - 1 %}
{% set UNIT = 64 if not FORMATS[D].values else 4 if FORMATS[D].values == "f32" else 8 %}
const ATTEMPTS = 1000000u;       // more than all additions to a sum can take from each other
var<private> has_more: bool;      // whether a value had other parts than those of 2^-23

fn add_to_down(n: u32, v: f32) {
    if (abs(v) < QUARTER) {
        add_parts(n, v);
    } else if (abs(v) < RANGE) {
        let quarters = round(v / QUARTER);
        has_more = true;
        atomicAdd(&down[N{{ D }} + n], bitcast<u32>(i32(quarters)));
        add_parts(n, v - QUARTER * quarters);
    } else {
        add_large(n, v);
    }
}

fn add_parts(n: u32, v: f32) {
    atomicAdd(&down[n], bitcast<u32>(i32(round(PARTS * v))));
}

// Add a value that is out of range or no number. WGSL has no addition of floats in memory.
fn add_large(n: u32, v: f32) {
    has_more = true;
    let at = 2u * N{{ D }} + 4u + n;
    var seen = atomicLoad(&down[at]);
    for (var attempt = 0u; attempt < ATTEMPTS; attempt++) {
        let found = atomicCompareExchangeWeak(&down[at], seen, bitcast<u32>(bitcast<f32>(seen) + v));
        if (found.exchanged) {
            return;
        }
        seen = found.old_value;
    }
}

{% if UNIT == 64 %}
{% set S, F = D, FORMATS[D] %}
{% include "snippets/dot_half.wgsl" %}
{% else %}
// The product of one row of the last matrix with the {{ PAIRS }} gated outputs of an item, which are staged.
fn dot_half{{ D }}(row: u32, item: u32) -> f32 {
    var sum = 0.0;
{% for i in range(PAIRS // UNIT) %}
    sum += dot_unit{{ D }}(row, {{ PAIRS // UNIT }}u * item + {{ i }}u, {{ i * UNIT // 4 }}u);
{% endfor %}
    return sum;
}
{% endif %}

// Stage the gated outputs, multiply them, and clear the sums of the next phase. All threads call this.
fn add_down(item: u32, thread: Thread, subgroup_size: u32) {
    for (var i = item * WG + thread.index; i < SLOT; i += STRIDE * WG) {
        atomicStore(&down[SLOT + i], 0u);
    }
    has_more = false;
    workgroupBarrier();
{% if INT8 %}
    let quad = first_quad(thread, subgroup_size);
    let at = 4u * min(quad, {{ PAIRS // 4 - 1 }}u);
    let v = vec4<f32>(gated[at], gated[at + 1u], gated[at + 2u], gated[at + 3u]);
    stage_quad(thread, subgroup_size, quad, quad < {{ PAIRS // 4 }}u, v);
{% else %}
    if (thread.index < {{ PAIRS // 4 }}u) {
        let at = 4u * thread.index;
        staged[thread.index] = vec4<f32>(gated[at], gated[at + 1u], gated[at + 2u], gated[at + 3u]);
    }
{% endif %}
    workgroupBarrier();
    // Several rows at a time, because the compiler moves no load past an addition.
    for (var first = thread.index; first < N{{ D }}; first += {{ AT_ONCE }}u * WG) {
{% for r in range(AT_ONCE) %}
        let v{{ r }} = dot_half{{ D }}(min(first + {{ r }}u * WG, N{{ D }} - 1u), item);
{% endfor %}
{% for r in range(AT_ONCE) %}
        if (first + {{ r }}u * WG < N{{ D }}) {
            add_to_down(first + {{ r }}u * WG, v{{ r }});
        }
{% endfor %}
    }
{% if SUBGROUPS %}
    if (subgroupAny(has_more) && thread.lane == 0u) {
{% else %}
    if (has_more) {
{% endif %}
        atomicStore(&down[2u * N{{ D }}], 1u);
    }
}
