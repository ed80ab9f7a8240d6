{# Shaders may set MAX_TYPE, for example to vec4<f32> for a maximum of each component. #}
// Maximum over the workgroup of WG threads (a power of two); valid in every thread.
{% set NAME, TYPE, BOTH, SUBGROUP = "max", MAX_TYPE | default("f32"), "max(a, b)", "subgroupMax" %}
{% include "snippets/reduce.wgsl" %}
