{# Functions that read the matrices of FORMATS. Matrix S is bound as weight{{S}}: array<vec4<u32>>, in the
   layout of formats.py. A shader that reads 32 dequantized weights at a time sets DEQUANTIZED. #}
{% for F in FORMATS %}
{% set S = loop.index0 %}
override ROW_UNITS{{ S }}: u32;        // units ({{ "16 bytes" if F.values else "64 codes" }}) of a row
{% if F.units_first %}
override PART_ROWS{{ S }}: u32;        // rows of the part
{% endif %}
{% if F.high %}
override HIGH{{ S }}: u32;             // offsets of the planes, in words of 16 bytes
{% endif %}
{% if not F.values %}
override SCALES{{ S }}: u32;
{% endif %}
{% if F.levels == 2 %}
override SUPER_SCALES{{ S }}: u32;
{% endif %}
{% endfor %}

{% include "weights/snippets/quads.wgsl" %}
{% if FORMATS | selectattr("floats") | list %}
{% include "weights/snippets/doubled_floats.wgsl" %}

{% endif %}
{% if FORMATS | selectattr("minimum") | list %}
{% include "weights/snippets/half_scales.wgsl" %}

{% endif %}
{% if FORMATS | selectattr("column") | list %}
// Scales along N as they are stored. They are unpacked where they are used, so that other loads need not wait for them.
struct StoredScales {
    bytes: vec2<u32>,    // of four scales, and of four minimums
    first: vec4<u32>,    // super-block scales, or the scales of formats without
    second: vec4<u32>,   // super-block scales of minimums
}

{% endif %}
{% for F in FORMATS %}
{% set S = loop.index0 %}
{% set ROW_UNITS, PART_ROWS = "ROW_UNITS" ~ S, "PART_ROWS" ~ S %}
{% include "weights/snippets/unit_at.wgsl" %}

{% if not F.values %}
{% include "weights/snippets/codes.wgsl" %}

{% endif %}
{% if F.column %}
{% include "weights/snippets/scales_along_n.wgsl" %}

{% elif not F.values %}
{% include "weights/snippets/scales_along_k.wgsl" %}

{% endif %}
{% if DEQUANTIZED is defined %}
{% include "weights/snippets/dequantized.wgsl" %}

{% endif %}
{% endfor %}
