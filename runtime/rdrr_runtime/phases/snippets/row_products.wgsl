{# Adds to {{ to }} the product of 64 inputs of a row, c0 to c3 and `scale` of int8_rows, with the weights
   of output {{ o }} that row_registers.wgsl has named. #}
{% if FORMS[m] == "16" %}
{% for i in range(4) %}
                {{ to }} += scale.{{ "xxzz"[i] }} * weight_scale{{ m }}_{{ o }}_{{ i }} * to_f32(add16(ORIGIN, code{{ m }}_{{ o }}_{{ i }}, c{{ i }}));
{% endfor %}
{% else %}
{% for h in range(2) %}
{% set sum = "to_f32(add16(add16(ORIGIN, code" ~ m ~ "_" ~ o ~ "_" ~ 2 * h ~ ", c" ~ 2 * h ~ "), code" ~ m ~ "_" ~ o ~ "_" ~ (2 * h + 1) ~ ", c" ~ (2 * h + 1) ~ "))" %}
{% set factor = "weight_scale" ~ m ~ "_" ~ o ~ "_" ~ h %}
{% if "minimum" in FORMS[m] %}
                {{ to }} += scale.{{ "xz"[h] }} * {{ factor }}.x * {{ sum }};
                {{ to }} -= scale.{{ "yw"[h] }} * {{ factor }}.y;
{% else %}
                {{ to }} += scale.{{ "xz"[h] }} * {{ factor }} * {{ sum }};
{% endif %}
{% endfor %}
{% endif %}
