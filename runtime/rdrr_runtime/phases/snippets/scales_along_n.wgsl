// Scales of matrix {{ S }}, whose groups lie along N: those of four inputs for a group of outputs.
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
{% set BYTES = "vec2<u32>" if F.minimum else "u32" %}
// Scales of the inputs 4 i to 4 i + 3, given the bytes of their scales{{ " and minimums" if F.minimum }}.
fn unpacked_quad_scales{{ S }}(bytes: {{ BYTES }}, group: vec2<u32>, i: u32) -> QuadScales{{ S }} {
    let scale = bitcast<vec4<f32>>(weight{{ S }}[group.y + i]);
{% if F.minimum %}
    let minimum = bitcast<vec4<f32>>(weight{{ S }}[group.y + 16u * ROW_UNITS{{ S }} + i]);
    return QuadScales{{ S }}(scale * vec4<f32>(unpack4xU8(bytes.x)), minimum * vec4<f32>(unpack4xU8(bytes.y)));
{% else %}
    return QuadScales{{ S }}(scale * vec4<f32>(unpack4xI8(bytes)));
{% endif %}
}

fn quad_scales{{ S }}(group: vec2<u32>, i: u32) -> QuadScales{{ S }} {
{% if F.minimum %}
    let pairs = weight{{ S }}[group.x + i / 2u];
    return unpacked_quad_scales{{ S }}(select(pairs.xy, pairs.zw, i % 2u == 1u), group, i);
{% else %}
    return unpacked_quad_scales{{ S }}(weight{{ S }}[group.x + i / 4u][i % 4u], group, i);
{% endif %}
}
{% else %}
fn quad_scales{{ S }}(group: vec2<u32>, i: u32) -> QuadScales{{ S }} {
{% if F.minimum %}
    let words = weight{{ S }}[group.x + i];
    let a = half_scales(words.x);
    let b = half_scales(words.y);
    let c = half_scales(words.z);
    let d = half_scales(words.w);
    return QuadScales{{ S }}(vec4<f32>(a.x, b.x, c.x, d.x), {{ "-" if F.minimum == "added" }}vec4<f32>(a.y, b.y, c.y, d.y));
{% else %}
    return QuadScales{{ S }}(bitcast<vec4<f32>>(weight{{ S }}[group.x + i]));
{% endif %}
}
{% endif %}
