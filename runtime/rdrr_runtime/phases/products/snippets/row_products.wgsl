{# Adds to {{ to }} the product of 64 inputs of a row (the codes c0 to c3 and `scale` that
   quantize_small_batch wrote) with 64 weights of output {{ o }}, which row_registers.wgsl has unpacked. #}
{% for h in range(2) %}
{% set code = "code" ~ m ~ "_" ~ o ~ "_" %}
{% set factor = "weight_scale" ~ m ~ "_" ~ o ~ "_" ~ h %}
{% if HALVES %}
                {{ to }} += {{ factor }}.x * (
                    scale.{{ "xz"[h] }} * magic_to_f32(dot16(MAGIC_BITS, {{ code }}{{ 2 * h }}, c{{ 2 * h }}))
                    + scale.{{ "yw"[h] }} * magic_to_f32(dot16(MAGIC_BITS, {{ code }}{{ 2 * h + 1 }}, c{{ 2 * h + 1 }}))
                );
{% elif FORMATS[m].group == 16 %}
{% for i in range(2) %}
{% set part = "." ~ "xy"[i] %}
                {{ to }} += scale.{{ "xz"[h] }}
                    * magic_times(dot16(MAGIC_BITS, {{ code }}{{ 2 * h + i }}, c{{ 2 * h + i }}), {{ factor }}{{ part }}, {{ factor }}_magic{{ part }});
{% endfor %}
{% else %}
                {{ to }} += scale.{{ "xz"[h] }} * {{ factor }}.x
                    * magic_to_f32(dot16(dot16(MAGIC_BITS, {{ code }}{{ 2 * h }}, c{{ 2 * h }}), {{ code }}{{ 2 * h + 1 }}, c{{ 2 * h + 1 }}));
{% if FORMATS[m].minimum %}
                {{ to }} -= scale.{{ "yw"[h] }} * {{ factor }}.y;
{% endif %}
{% endif %}
{% endfor %}
