// Dot product of a unit of a row of matrix {{ S }} with its staged inputs, of which the first four are number `quad`
// of those that are staged.
{% if F.values %}
fn dot_unit{{ S }}(row: u32, unit: u32, quad: u32) -> f32 {
    let w = weight{{ S }}[unit_at{{ S }}(row, unit)];
{% if INT8 %}
    // The staged input is int8; the few outputs of an unquantized matrix read the input itself.
    var ignored = 0.0;
{% if F.values == "f32" %}
    return dot(bitcast<vec4<f32>>(w), input(quad, &ignored));
{% else %}
    return dot(quad_{{ F.values }}(w.xy), input(quad, &ignored))
         + dot(quad_{{ F.values }}(w.zw), input(quad + 1u, &ignored));
{% endif %}
{% elif F.values == "f32" %}
    return dot(bitcast<vec4<f32>>(w), staged[place(quad)]);
{% else %}
    return dot(quad_{{ F.values }}(w.xy), staged[place(quad)]) + dot(quad_{{ F.values }}(w.zw), staged[place(quad + 1u)]);
{% endif %}
}
{% else %}
fn dot_unit{{ S }}(row: u32, unit: u32, quad: u32) -> f32 {
    let raw = halves{{ S }}(unit_at{{ S }}(row, unit));
{% if not F.column %}
    let scale_words = scale_words{{ S }}(row, unit);
{% endif %}
{% set sixteens = ["first_codes" ~ S ~ "(raw.first)", "last_codes" ~ S ~ "(raw.first)", "first_codes" ~ S ~ "(raw.second)", "last_codes" ~ S ~ "(raw.second)"] %}
{% if INT8 %}
    let part = quad / 4u;  // index of the first 16 elements
    let swizzle = swizzle_of(part);
    let by16 = vec4<f32>(scales[part], scales[part + 1u], scales[part + 2u], scales[part + 3u]);
    let sums16 = vec4<f32>(
{% for sixteen in sixteens %}
        magic_to_f32(dot16(MAGIC_BITS, {{ sixteen }}, staged[(part + {{ loop.index0 }}u) ^ swizzle])),
{% endfor %}
    );
{% else %}
    let swizzle = swizzle_of(quad);
{% for sixteen in sixteens %}
{% set q = loop.index0 %}
    let codes{{ q }} = {{ sixteen }};
    var sum{{ q }} = vec4<f32>(0.0);
{% if F.minimum and not F.column %}
    var all{{ q }} = vec4<f32>(0.0);
{% endif %}
{% for i in range(4) %}
    let x{{ q }}_{{ i }} = staged[(quad + {{ 4 * q + i }}u) ^ swizzle];
    sum{{ q }} += vec4<f32>({{ "unpack4xI8" if F.signed else "unpack4xU8" }}(codes{{ q }}[{{ i }}])) * x{{ q }}_{{ i }};
{% if F.minimum and not F.column %}
    all{{ q }} += x{{ q }}_{{ i }};
{% endif %}
{% endfor %}
{% endfor %}
    let one = vec4<f32>(1.0);
{% endif %}
{% if F.column and INT8 %}
    return dot(by16, sums16);
{% elif F.column %}
    return dot(sum0 + sum1 + sum2 + sum3, one);
{% else %}
{% if INT8 %}
    let products = by16 * sums16;
{% else %}
    let products = vec4<f32>(dot(sum0, one), dot(sum1, one), dot(sum2, one), dot(sum3, one));
{% endif %}
{% if F.minimum %}
{% if INT8 %}
    let all = vec4<f32>(sums[part], sums[part + 1u], sums[part + 2u], sums[part + 3u]);
{% else %}
    let all = vec4<f32>(dot(all0, one), dot(all1, one), dot(all2, one), dot(all3, one));
{% endif %}
{% endif %}
{% if F.levels == 2 and F.group == 16 %}
    return bitcast<f32>(scale_words.super_scale) * dot(vec4<f32>(unpack4xI8(scale_words.scales)), products);
{% elif F.levels == 2 %}
    let s = vec4<f32>(unpack4xU8(scale_words.scales));
    let d = half_scales(scale_words.super_scale);
    return d.x * dot(s.xxzz, products) - d.y * dot(s.yyww, all);
{% else %}
    let a = scales{{ S }}(scale_words, 0u);
    let b = scales{{ S }}(scale_words, 1u);
    return dot(vec4<f32>(a.x, a.x, b.x, b.x), products){{ " - dot(vec4<f32>(a.y, a.y, b.y, b.y), all)" if F.minimum }};
{% endif %}
{% endif %}
}
{% endif %}
