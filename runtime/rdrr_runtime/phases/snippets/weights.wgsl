{# How the matrices of FORMATS are read, the S-th being bound as weight{{S}}: array<vec4<u32>>; see
   formats.py. Kernels that take 32 weights at a time say DEQUANTIZED, those that scale the input
   for column-major weights say STAGED. #}
{% for F in FORMATS %}
{% set S = loop.index0 %}
override ROW_UNITS{{ S }}: u32;        // units of a row: {{ "16 bytes" if F.values else "64 codes" }}
{% if F.high %}
override HIGH{{ S }}: u32;             // where the planes begin, in words of 16 bytes
{% endif %}
{% if not F.values %}
override SCALES{{ S }}: u32;
{% endif %}
{% if F.levels == 2 %}
override SUPER_SCALES{{ S }}: u32;
{% endif %}
{% endfor %}

{% include "snippets/quads.wgsl" %}
{% if FORMATS | selectattr("minimum") | list %}
{% include "snippets/half_scales.wgsl" %}

{% endif %}
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% if not F.values %}
{% include "snippets/codes.wgsl" %}

{% endif %}
{% if F.column %}
{% include "snippets/scales_along_n.wgsl" %}

{% elif not F.values %}
{% include "snippets/scales_along_k.wgsl" %}

{% endif %}
{% if DEQUANTIZED is defined %}
{% include "snippets/dequantized.wgsl" %}

{% endif %}
{% endfor %}
