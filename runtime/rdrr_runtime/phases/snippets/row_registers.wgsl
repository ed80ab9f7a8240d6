{# What unpack{{ m }} left of the {{ o }}-th output, read once and not for every row. #}
{% for i in range(4) %}
            let code{{ m }}_{{ o }}_{{ i }} = tile_w{{ m }}[{{ o + i * OUTPUTS }}];
{% endfor %}
{% for i in range(4 if FORMS[m] == "16" else 2) %}
            let weight_scale{{ m }}_{{ o }}_{{ i }} = scale_w{{ m }}[{{ o + i * OUTPUTS }}];
{% endfor %}
