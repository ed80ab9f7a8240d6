// Bindings and constants for RMSNorm and rope of query and key heads, either of which a layer may lack:
// norm(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain), then the first PAIRS pairs of a head are rotated.
{% if ROPE %}
{% include "snippets/rotated.wgsl" %}
var<storage, read> table: array<vec2<f32>>;  // [context, PAIRS]: cos, sin
{% endif %}
{% if NORM %}
var<storage, read> gains: array<f32>;        // [2, HEAD_DIM]: norm weights of queries, then of keys
{% endif %}

override PAIRS: u32;
override EPS: f32;
override OFFSET: f32;
