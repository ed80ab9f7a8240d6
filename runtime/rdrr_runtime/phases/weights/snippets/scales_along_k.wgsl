// Scales of matrix {{ S }}, whose groups lie along K: the words that hold the scales of a unit.
struct ScaleWords{{ S }} {
{% if F.levels == 2 %}
    scales: u32,
    super_scale: u32,
{% else %}
    factors: vec2<u32>,
{% endif %}
}

fn scale_words{{ S }}(row: u32, unit: u32) -> ScaleWords{{ S }} {
    let at = unit_at{{ S }}(row, unit);
{% if F.levels == 2 %}
    let block = super_block_at{{ S }}(row, unit);
    return ScaleWords{{ S }}(
        weight{{ S }}[SCALES{{ S }} + at / 4u][at % 4u],
        weight{{ S }}[SUPER_SCALES{{ S }} + block / 4u][block % 4u],
    );
{% else %}
    let both = weight{{ S }}[SCALES{{ S }} + at / 2u];
    return ScaleWords{{ S }}(select(both.xy, both.zw, at % 2u == 1u));
{% endif %}
}

// Of half `part` of a unit (32 codes): {{ "the scales of the first and the last 16 codes" if F.group == 16 else "the scale, and the minimum to subtract" }}.
fn scales{{ S }}(scale_words: ScaleWords{{ S }}, part: u32) -> vec2<f32> {
{% if F.levels == 2 %}
    let bytes = scale_words.scales >> (16u * part);
{% if F.group == 16 %}
    return bitcast<f32>(scale_words.super_scale) * vec2<f32>(unpack4xI8(bytes).xy);
{% else %}
    return half_scales(scale_words.super_scale) * vec2<f32>(f32(bytes & 0xffu), f32((bytes >> 8u) & 0xffu));
{% endif %}
{% elif F.minimum %}
    return half_scales(select(scale_words.factors.x, scale_words.factors.y, part == 1u)){{ " * vec2<f32>(1.0, -1.0)" if F.minimum == "added" }};
{% else %}
    return vec2<f32>(bitcast<f32>(select(scale_words.factors.x, scale_words.factors.y, part == 1u)), 0.0);
{% endif %}
}
