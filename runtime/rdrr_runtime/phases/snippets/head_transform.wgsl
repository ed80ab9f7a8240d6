// What phases bind and know that do RMSNorm and rope of the heads of queries and keys, each where a
// layer has it: norm(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain), then PAIRS pairs of a head rotate.
{% if ROPE %}
{% include "snippets/rotated.wgsl" %}
var<storage, read> table: array<vec2<f32>>;  // [context, PAIRS]: cos, sin
{% endif %}
{% if NORM %}
var<storage, read> gains: array<f32>;        // [2, HEAD_DIM]: of queries, then of keys
{% endif %}

override PAIRS: u32;
override EPS: f32;
override OFFSET: f32;
