// Bindings and constants for RMSNorm, rope and scale of query and key heads, which a layer may lack:
// norm(x) = x / sqrt(mean(x^2) + EPS) * (OFFSET + gain), then the first PAIRS pairs of a head are
// rotated, and queries are multiplied by query_factor(position).
{% set BY_WORD = BY_WORD | default(false) %}{# tables are read 4 numbers at a time #}
{% if ROPE %}
{% if not BY_WORD %}
{% include "attention/snippets/rotated.wgsl" %}
{% endif %}
var<storage, read> table: array<{{ "vec4" if BY_WORD else "vec2" }}<f32>>;  // [context, PAIRS]: cos, sin
{% endif %}
{% if NORM %}
var<storage, read> gains: array<{{ "vec4<f32>" if BY_WORD else "f32" }}>;  // [2, HEAD_DIM]: norm weights of queries, then of keys
{% endif %}

{% if SCALED %}
override QUERY_SCALE: f32;
override QUERY_LENGTH: u32;
override QUERY_OFFSET: u32;

fn query_factor(position: u32) -> f32 {
    return 1.0 + QUERY_SCALE * log(f32(1u + (position + QUERY_OFFSET) / QUERY_LENGTH));
}
{% else %}
fn query_factor(position: u32) -> f32 {
    return 1.0;
}
{% endif %}

override PAIRS: u32;
override EPS: f32;
override OFFSET: f32;
