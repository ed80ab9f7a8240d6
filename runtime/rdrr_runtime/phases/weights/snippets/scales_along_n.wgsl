// Scales of matrix {{ S }}, whose groups lie along N: those of four inputs for a group of outputs.{% if F.minimum %}
// The stored codes are 2^{{ F.shift }} (code - {{ 2 ** (F.bits - 1) }}), so 128 times their scale is part of the minimum.{% endif %}

struct QuadScales{{ S }} {
    scale: vec4<f32>,
{% if F.minimum %}
    minimum: vec4<f32>,
{% endif %}
}

// Offsets of the scales (x) and of the super-block scales (y) of the group that an output belongs to.
fn group{{ S }}(output: u32) -> vec2<u32> {
    let quads = 16u * ROW_UNITS{{ S }};
{% if F.levels == 2 %}
    return vec2<u32>(
        SCALES{{ S }} + output / {{ F.group }}u * quads{{ " / 2u" if F.minimum else " / 4u" }},
        SUPER_SCALES{{ S }} + output / 256u * {{ "2u * " if F.minimum }}quads,
    );
{% else %}
    return vec2<u32>(SCALES{{ S }} + output / {{ F.group }}u * quads, 0u);
{% endif %}
}

{% if F.levels == 2 %}
// Load the super-block scales of the inputs 4 i to 4 i + 3 for a group, given {{ "the words of scales and minimums" if F.minimum else "the word of their scales" }}.
fn stored_with{{ S }}(bytes: {{ "vec2<u32>" if F.minimum else "u32" }}, group: vec2<u32>, i: u32) -> StoredScales {
{% if F.minimum %}
    return StoredScales(bytes, weight{{ S }}[group.y + i], weight{{ S }}[group.y + 16u * ROW_UNITS{{ S }} + i]);
{% else %}
    return StoredScales(vec2<u32>(bytes, 0u), weight{{ S }}[group.y + i], vec4<u32>(0u));
{% endif %}
}

{% endif %}
// Load the scales of the inputs 4 i to 4 i + 3 for a group.
fn stored_scales{{ S }}(group: vec2<u32>, i: u32) -> StoredScales {
{% if F.levels == 2 and F.minimum %}
    let pairs = weight{{ S }}[group.x + i / 2u];
    return stored_with{{ S }}(select(pairs.xy, pairs.zw, i % 2u == 1u), group, i);
{% elif F.levels == 2 %}
    return stored_with{{ S }}(weight{{ S }}[group.x + i / 4u][i % 4u], group, i);
{% else %}
    return StoredScales(vec2<u32>(0u), weight{{ S }}[group.x + i], vec4<u32>(0u));
{% endif %}
}

fn unpacked_scales{{ S }}(stored: StoredScales) -> QuadScales{{ S }} {
{% if F.levels == 2 and F.minimum %}
    let scale = bitcast<vec4<f32>>(stored.first) * vec4<f32>(unpack4xU8(stored.bytes.x));
    return QuadScales{{ S }}(
        scale, bitcast<vec4<f32>>(stored.second) * vec4<f32>(unpack4xU8(stored.bytes.y)) - 128.0 * scale
    );
{% elif F.levels == 2 %}
    return QuadScales{{ S }}(bitcast<vec4<f32>>(stored.first) * vec4<f32>(unpack4xI8(stored.bytes.x)));
{% elif F.minimum %}
    let a = half_scales(stored.first.x);
    let b = half_scales(stored.first.y);
    let c = half_scales(stored.first.z);
    let d = half_scales(stored.first.w);
    let scale = vec4<f32>(a.x, b.x, c.x, d.x) * {{ 1 / 2 ** F.shift }};
    return QuadScales{{ S }}(scale, {{ "-" if F.minimum == "added" }}vec4<f32>(a.y, b.y, c.y, d.y) - 128.0 * scale);
{% else %}
    return QuadScales{{ S }}(bitcast<vec4<f32>>(stored.first));
{% endif %}
}
