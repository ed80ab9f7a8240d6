// The residual stream after a branch: s = x + branch{% if ADDED_NORMED %}, where the branch is normed first, norm(v) = v / sqrt(mean(v^2) +
// ADDED_EPS) * (ADDED_OFFSET + gain){% if ADDED_SCALED %}, and the sum is multiplied by ADDED_FACTOR and a weight{% endif %}. The sum of squares takes a
// wait of the workgroup, so a thread loads the first four elements that it needs before that and holds
// them. It uses the gains only after the wait: they come from memory, while the branch has just been written{% endif %}.

// Elements 4 i to 4 i + 3 of the branch, before its norm.
fn branch_at(i: u32) -> vec4<f32> {
{% if ADDED_FIXED %}
    let parts = branch[i];
    if (branch[K / 2u].x == 0u) {
        return from_fixed_point(parts, vec4<u32>(0u));
    }
    return from_fixed_point(parts, branch[K / 4u + i]) + bitcast<vec4<f32>>(branch[K / 2u + 1u + i]);
{% else %}
    return vec4<f32>(branch[i]);
{% endif %}
}
{% if not ADDED_NORMED %}

// Elements 4 i to 4 i + 3 of the stream.
fn stream_at(i: u32) -> vec4<f32> {
    return vec4<f32>(x[i]) + branch_at(i);
}
{% else %}
override ADDED_EPS: f32;
override ADDED_OFFSET: f32;
{% if ADDED_SCALED %}
override ADDED_FACTOR: f32;
{% endif %}
var<private> held_at: u32;
var<private> held_x: vec4<f32>;
var<private> held_branch: vec4<f32>;
var<private> held_gain: vec4<f32>;  // of the branch
{% if INPUT == "norm" %}
var<private> held_next_gain: vec4<f32>;  // of the norm after the sum
{% endif %}
var<private> branch_factor: f32;

// Sum of squares of this thread's elements of the branch: four at `own`, which it holds, and every WG-th after.
fn branch_squares(own: u32) -> f32 {
    let last = K / 4u - 1u;
    held_at = min(own, last);
    held_gain = gain[held_at];
{% if INPUT == "norm" %}
    held_next_gain = gain[K / 4u + held_at];
{% endif %}
    let first = vec4<f32>(x[held_at]);
    held_branch = branch_at(held_at);
    held_x = first;
    var squares = select(0.0, dot(held_branch, held_branch), own <= last);
{% if not WHOLE %}
    for (var i = own + WG; i <= last; i += WG) {
        let v = branch_at(i);
        squares += dot(v, v);
    }
{% endif %}
    return squares;
}

fn set_branch_factor(squares: f32) {
    branch_factor = inverseSqrt(squares / f32(K) + ADDED_EPS);
}

// Elements 4 i to 4 i + 3 of the stream.
fn stream_at(i: u32) -> vec4<f32> {
    var s = held_x;
    var b = held_branch;
    var g = held_gain;
{% if not WHOLE %}
    if (i != held_at) {
        s = vec4<f32>(x[i]);
        b = branch_at(i);
        g = gain[i];
    }
{% endif %}
    s += branch_factor * b * (ADDED_OFFSET + g);
    return s{{ " * (ADDED_FACTOR * gain[" ~ ("K / 2u" if INPUT == "norm" else "K / 4u") ~ "].x)" if ADDED_SCALED }};
}
{% endif %}
{% if ADDED_STORED %}

// Store the stream for later phases.
fn store_stream(own: u32) {
{% if WHOLE %}
    if (own < K / 4u) {
        stream[own] = value4(stream_at(own));
    }
{% else %}
    for (var i = own; i < K / 4u; i += WG) {
        stream[i] = value4(stream_at(i));
    }
{% endif %}
}
{% endif %}
