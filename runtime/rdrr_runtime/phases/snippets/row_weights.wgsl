{# Codes and scales of 64 inputs of {{ OUTPUTS }} outputs of matrix {{ S }}, which stay in registers because every
   index is a constant, and the unpacking that leaves them there. #}
{% set TILE_N = OUTPUTS %}
{% set group, minimum = 16 if FORMS[S] == "16" else 32, "minimum" in FORMS[S] %}
var<private> tile_w{{ S }}: array<vec4<u32>, {{ 4 * OUTPUTS }}>;
var<private> scale_w{{ S }}: array<{{ "vec2<f32>" if minimum else "f32" }}, {{ 64 // group * OUTPUTS }}>;
{% include "snippets/tile_" ~ SEGMENTS[S] ~ "_int8.wgsl" %}
