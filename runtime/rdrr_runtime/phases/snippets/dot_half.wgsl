// Dot product of half a unit of a row of matrix {{ S }}, 32 codes, with the first staged inputs. The scales lie along K.
fn dot_half{{ S }}(row: u32, half: u32) -> f32 {
    let raw = half{{ S }}(unit_at{{ S }}(row, half / 2u), half % 2u);
    let s = scales{{ S }}(scale_words{{ S }}(row, half / 2u), half % 2u);
{% if INT8 %}
    let products = vec2<f32>(scales[0], scales[1]) * vec2<f32>(
        magic_to_f32(dot16(MAGIC_BITS, first_codes{{ S }}(raw), staged[0])),
        magic_to_f32(dot16(MAGIC_BITS, last_codes{{ S }}(raw), staged[1])),
    );
{% if F.minimum %}
    let all = sums[0] + sums[1];
{% endif %}
{% else %}
    var products = vec2<f32>(0.0);
{% if F.minimum %}
    var all = 0.0;
{% endif %}
{% for sixteen in range(2) %}
    let codes{{ sixteen }} = {{ "last" if sixteen else "first" }}_codes{{ S }}(raw);
{% for i in range(4) %}
    let x{{ sixteen }}_{{ i }} = staged[{{ 4 * sixteen + i }}u];
    products.{{ "xy"[sixteen] }} += dot(vec4<f32>({{ "unpack4xI8" if F.signed else "unpack4xU8" }}(codes{{ sixteen }}[{{ i }}])), x{{ sixteen }}_{{ i }});
{% if F.minimum %}
    all += dot(x{{ sixteen }}_{{ i }}, vec4<f32>(1.0));
{% endif %}
{% endfor %}
{% endfor %}
{% endif %}
{% if F.group == 16 %}
    return dot(s, products);
{% else %}
    return s.x * (products.x + products.y){{ " - s.y * all" if F.minimum }};
{% endif %}
}
