// 32 values in int8: value = scale code, with scale = max|value| / 127{% if HALVES %}, one scale for each 16{% endif %}.
struct Int8Group {
    first: vec4<u32>,    // codes 0 to 15
    last: vec4<u32>,     // codes 16 to 31
    factors: vec2<f32>,  // {{ "the scale of the first 16 and that of the last 16" if HALVES else "the scale, and the scale times the sum of the codes" }}
}

{% include "snippets/abs_max.wgsl" %}

{% set PARTS = [range(4), range(4, 8)] if HALVES else [range(8)] %}
fn int8_group(v: array<vec4<f32>, 8>) -> Int8Group {
{% for part in PARTS %}
{% set p = loop.index0 %}
    var bits{{ p }} = 0u;
{% for i in part %}
    bits{{ p }} = max(bits{{ p }}, bits_of_abs_max(v[{{ i }}]));
{% endfor %}
    let amax{{ p }} = bitcast<f32>(bits{{ p }});
    let inverse{{ p }} = select(0.0, 127.0 / amax{{ p }}, amax{{ p }} > 0.0);
{% for i in part %}
    let q{{ i }} = vec4<i32>(round(v[{{ i }}] * inverse{{ p }}));
{% endfor %}
{% endfor %}
{% if not HALVES %}
    let sums = q0 + q1 + q2 + q3 + q4 + q5 + q6 + q7;
    let scale = amax0 / 127.0;
{% endif %}
    return Int8Group(
        vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3)),
        vec4<u32>(pack4xI8(q4), pack4xI8(q5), pack4xI8(q6), pack4xI8(q7)),
        vec2<f32>({{ "amax0, amax1) / 127.0" if HALVES else "scale, scale * f32(sums.x + sums.y + sums.z + sums.w))" }},
    );
}
