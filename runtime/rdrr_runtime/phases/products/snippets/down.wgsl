{# The end of a gated product with OUTPUT "down": D is the number of the last matrix. #}
{% set D = MATRICES - 1 %}
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

{% set S, F = D, FORMATS[D] %}
{% include "products/snippets/dot_pairs.wgsl" %}

{% set QUADS = PAIRS // 4 %}
{% set STAGED_QUADS = QUADS ~ ("u * GROUPS" if COLUMN else "u") %}
{% if COLUMN %}
// The gated outputs are staged as products with the scales of each group of outputs, the first group first.
{% if F.minimum %}
var<workgroup> quad_minimums: array<f32, {{ STAGED_QUADS }}>;  // products with the minimums, of four outputs each
var<workgroup> down_minimums: array<f32, GROUPS>;        // and of all
{% endif %}

// The scales of quad `at` of those that are staged; past the end those of the last.
fn down_scales(at: u32, item: u32) -> QuadScales{{ D }} {
    let inside = min(at, {{ STAGED_QUADS }} - 1u);
    let group = group{{ D }}(inside / {{ QUADS }}u * {{ F.group }}u);
    return unpacked_scales{{ D }}(stored_scales{{ D }}(group, {{ QUADS }}u * item + inside % {{ QUADS }}u));
}
{% endif %}

// The gated outputs of quad `at` of those that are staged{{ ", multiplied by their scales" if COLUMN }}.
fn gated_quad(at: u32{{ ", f: QuadScales" ~ D if COLUMN }}) -> vec4<f32> {
    let quad = at{{ " % " ~ QUADS ~ "u" if COLUMN }};
    let v = vec4<f32>(gated[4u * quad], gated[4u * quad + 1u], gated[4u * quad + 2u], gated[4u * quad + 3u]);
{% if COLUMN %}
{% if F.minimum %}
    quad_minimums[at] = dot(v, f.minimum);
{% endif %}
    return v * f.scale;
{% else %}
    return v;
{% endif %}
}

// Stage the gated outputs, multiply them, and clear the sums of the next phase. All threads call this.
fn add_down(item: u32, thread: Thread, subgroup_size: u32{% for q in range(SCALE_QUADS) %}, scales{{ q }}: QuadScales{{ D }}{% endfor %}) {
    for (var i = item * WG + thread.index; i < SLOT; i += STRIDE * WG) {
        atomicStore(&down[SLOT + i], 0u);
    }
    has_more = false;
    workgroupBarrier();
    let own = {{ "first_quad(thread, subgroup_size)" if INT8 else "thread.index" }};
{% for q in range(SCALE_QUADS or 1) %}
    let at{{ q }} = {{ q }}u * WG + own;
    var v{{ q }} = vec4<f32>(0.0);
    if (at{{ q }} < {{ STAGED_QUADS }}) {
        v{{ q }} = gated_quad(at{{ q }}{{ ", scales" ~ q if COLUMN }});
{% if not INT8 %}
        staged[place(at{{ q }})] = v{{ q }};
{% endif %}
    }
{% if INT8 %}
    stage_quad(thread, subgroup_size, at{{ q }}, at{{ q }} < {{ STAGED_QUADS }}, v{{ q }});
{% endif %}
{% endfor %}
{% if COLUMN and F.minimum %}
    workgroupBarrier();
    for (var group = thread.index; group < GROUPS; group += WG) {
        var sum = 0.0;
        for (var i = 0u; i < {{ QUADS }}u; i++) {
            sum += quad_minimums[{{ QUADS }}u * group + i];
        }
        down_minimums[group] = sum;
    }
{% endif %}
    workgroupBarrier();
    // Several rows at a time, because the compiler moves no load past an addition.
    for (var first = thread.index; first < N{{ D }}; first += {{ AT_ONCE }}u * WG) {
{% for r in range(AT_ONCE) %}
        let v{{ r }} = dot_pairs(min(first + {{ r }}u * WG, N{{ D }} - 1u), item);
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
