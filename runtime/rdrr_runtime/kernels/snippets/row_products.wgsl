{# Adds to {{ to }} the product of 64 inputs of a row, c0 to c3 and `scale` of int8_rows, with the
   {{ o }}-th output's weights, which unpack{{ m }} left in private variables. #}
{% set group, minimum = 16 if FORMS[m] == "16" else 32, "minimum" in FORMS[m] %}
{% if group == 16 %}
{% for i in range(4) %}
                {{ to }} += scale.{{ "xxzz"[i] }} * scale_w{{ m }}[{{ o + i * OUTPUTS }}] * to_f32(add16(ORIGIN, tile_w{{ m }}[{{ o + i * OUTPUTS }}], c{{ i }}));
{% endfor %}
{% else %}
{% for h in range(2) %}
{% set a, b = o + 2 * h * OUTPUTS, o + (2 * h + 1) * OUTPUTS %}
{% set sum = "to_f32(add16(add16(ORIGIN, tile_w" ~ m ~ "[" ~ a ~ "], c" ~ 2 * h ~ "), tile_w" ~ m ~ "[" ~ b ~ "], c" ~ (2 * h + 1) ~ "))" %}
{% set w = "scale_w" ~ m ~ "[" ~ (o + h * OUTPUTS) ~ "]" %}
{% if minimum %}
                {{ to }} += scale.{{ "xz"[h] }} * {{ w }}.x * {{ sum }};
                {{ to }} -= scale.{{ "yw"[h] }} * {{ w }}.y;
{% else %}
                {{ to }} += scale.{{ "xz"[h] }} * {{ w }} * {{ sum }};
{% endif %}
{% endfor %}
{% endif %}
