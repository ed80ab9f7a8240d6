{# PAIRS are half a unit of 64 codes, or with COLUMN also a quarter or a whole one. #}
{% set SIXTEENS = PAIRS // 16 %}
{% if F.column %}
{% set group = "row / " ~ F.group ~ "u" %}
{% endif %}
// The product of one row of the last matrix with the {{ PAIRS }} gated outputs of an item, which are staged{{ " for each group of rows" if F.column }}.
fn dot_pairs(row: u32, item: u32) -> f32 {
{% if F.values %}
{% set UNIT = F.unit %}
    var sum = 0.0;
{% for i in range(PAIRS // UNIT) %}
    sum += dot_unit{{ S }}(row, {{ PAIRS // UNIT }}u * item + {{ i }}u, {{ i * UNIT // 4 }}u);
{% endfor %}
    return sum;
{% elif PAIRS == 64 %}
    return dot_unit{{ S }}(row, item, 16u * ({{ group }})){{ " - down_minimums[" ~ group ~ "]" if F.minimum }};
{% else %}
    let half = item{{ " / 2u" if SIXTEENS == 1 }};
    let raw = half{{ S }}(unit_at{{ S }}(row, half / 2u), half % 2u);
{% if F.column %}
    let at = {{ SIXTEENS }}u * ({{ group }});
{% else %}
    let at = 0u;
    let s = scales{{ S }}(scale_words{{ S }}(row, half / 2u), half % 2u);
{% endif %}
{% set first, last = "first_codes" ~ S ~ "(raw)", "last_codes" ~ S ~ "(raw)" %}
{% set has_sums = F.minimum and not F.column %}
{% set sixteens = [first, last] if SIXTEENS == 2 else ["select(" ~ first ~ ", " ~ last ~ ", item % 2u == 1u)"] %}
{% for codes in sixteens %}
{% set c = loop.index0 %}
{% if INT8 %}
    let product{{ c }} = scales[at + {{ c }}u] * magic_to_f32(dot16(MAGIC_BITS, {{ codes }}, staged[place(at + {{ c }}u)]));
{% if has_sums %}
    let sum{{ c }} = sums[at + {{ c }}u];
{% endif %}
{% else %}
    let codes{{ c }} = {{ codes }};
    var product{{ c }} = 0.0;
{% if has_sums %}
    var sum{{ c }} = 0.0;
{% endif %}
{% for i in range(4) %}
    let x{{ c }}_{{ i }} = staged[place(4u * at + {{ 4 * c + i }}u)];
    product{{ c }} += dot(vec4<f32>({{ "unpack4xI8" if F.signed else "unpack4xU8" }}(codes{{ c }}[{{ i }}])), x{{ c }}_{{ i }});
{% if has_sums %}
    sum{{ c }} += dot(x{{ c }}_{{ i }}, vec4<f32>(1.0));
{% endif %}
{% endfor %}
{% endif %}
{% endfor %}
{% if F.column %}
    return product0{{ " + product1" if SIXTEENS == 2 }}{{ " - down_minimums[" ~ group ~ "]" if F.minimum }};
{% elif F.group == 16 %}
    return dot(s, vec2<f32>(product0, product1));
{% else %}
    return s.x * (product0 + product1){{ " - s.y * (sum0 + sum1)" if F.minimum }};
{% endif %}
{% endif %}
}
