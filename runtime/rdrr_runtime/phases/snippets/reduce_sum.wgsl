// Sum of a number or a vector over the workgroup of WG threads (a power of two); valid in every thread.
{% set NAME, TYPE, BOTH, SUBGROUP = "sum", SUM | default("vec4<f32>"), "a + b", "subgroupAdd" %}
{% include "snippets/reduce.wgsl" %}
