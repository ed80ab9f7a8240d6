// Scales of matrix {{ S }}, whose groups lie along N: of four inputs for a group of outputs.
struct Fours{{ S }} {
    scale: vec4<f32>,
{% if F.minimum %}
    minimum: vec4<f32>,
{% endif %}
}

// Where the scales of an output's group lie.
fn group{{ S }}(output: u32) -> vec2<u32> {
    let fours = 16u * ROW_UNITS{{ S }};
{% if F.levels == 2 %}
    return vec2<u32>(
        SCALES{{ S }} + output / {{ F.group }}u * fours{{ " / 2u" if F.minimum else " / 4u" }},
        COMMON{{ S }} + output / 256u * {{ "2u * " if F.minimum }}fours,
    );
{% else %}
    return vec2<u32>(SCALES{{ S }} + output / {{ F.group }}u * fours, 0u);
{% endif %}
}

{% if F.levels == 2 %}
{% set BYTES = "vec2<u32>" if F.minimum else "u32" %}
// Of the inputs from 4 i on, with the bytes of their scales{{ " and minimums" if F.minimum }}.
fn scaled_fours{{ S }}(bytes: {{ BYTES }}, group: vec2<u32>, i: u32) -> Fours{{ S }} {
    let scale = bitcast<vec4<f32>>(weight{{ S }}[group.y + i]);
{% if F.minimum %}
    let minimum = bitcast<vec4<f32>>(weight{{ S }}[group.y + 16u * ROW_UNITS{{ S }} + i]);
    return Fours{{ S }}(scale * vec4<f32>(unpack4xU8(bytes.x)), minimum * vec4<f32>(unpack4xU8(bytes.y)));
{% else %}
    return Fours{{ S }}(scale * vec4<f32>(unpack4xI8(bytes)));
{% endif %}
}

fn fours{{ S }}(group: vec2<u32>, i: u32) -> Fours{{ S }} {
{% if F.minimum %}
    let pairs = weight{{ S }}[group.x + i / 2u];
    return scaled_fours{{ S }}(select(pairs.xy, pairs.zw, i % 2u == 1u), group, i);
{% else %}
    return scaled_fours{{ S }}(weight{{ S }}[group.x + i / 4u][i % 4u], group, i);
{% endif %}
}
{% else %}
fn fours{{ S }}(group: vec2<u32>, i: u32) -> Fours{{ S }} {
{% if F.minimum %}
    let words = weight{{ S }}[group.x + i];
    let a = half_scales(words.x);
    let b = half_scales(words.y);
    let c = half_scales(words.z);
    let d = half_scales(words.w);
    return Fours{{ S }}(vec4<f32>(a.x, b.x, c.x, d.x), {{ "-" if F.minimum == "added" }}vec4<f32>(a.y, b.y, c.y, d.y));
{% else %}
    return Fours{{ S }}(bitcast<vec4<f32>>(weight{{ S }}[group.x + i]));
{% endif %}
}
{% endif %}
