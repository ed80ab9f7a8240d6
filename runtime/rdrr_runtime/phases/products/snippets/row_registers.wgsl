{# Unpacks the codes and scales of raw{{ m }}_{{ o }} into registers, once for all rows. #}
{% for i in range(4) %}
            let code{{ m }}_{{ o }}_{{ i }} = {{ "last" if i % 2 else "first" }}_codes{{ m }}(raw{{ m }}_{{ o }}.codes.{{ "second" if i > 1 else "first" }});
{% endfor %}
{% for h in range(2) %}
            let weight_scale{{ m }}_{{ o }}_{{ h }} = scales{{ m }}(raw{{ m }}_{{ o }}.scale_words, {{ h }}u);
{% if FORMATS[m].group == 16 %}
            let weight_scale{{ m }}_{{ o }}_{{ h }}_magic = MAGIC * weight_scale{{ m }}_{{ o }}_{{ h }};
{% endif %}
{% endfor %}
