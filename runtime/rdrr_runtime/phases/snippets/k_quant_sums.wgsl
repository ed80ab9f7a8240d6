    // The end of a unit's product with staged f32 inputs: codes `low` of sub-block `sub` and `high` of
    // the next, 16 each, with the scales and minimums of `head`.
    let first = (unit / 8u) * 64u + sub * 8u + (unit % 2u) * 4u;
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var sum_a = vec4<f32>(0.0);
    var sum_b = vec4<f32>(0.0);
{% for i in range(4) %}
    let xa{{ i }} = staged[first + {{ i }}u];
    let xb{{ i }} = staged[first + {{ 8 + i }}u];
    a += vec4<f32>(unpack4xU8(low[{{ i }}])) * xa{{ i }};
    b += vec4<f32>(unpack4xU8(high[{{ i }}])) * xb{{ i }};
    sum_a += xa{{ i }};
    sum_b += xb{{ i }};
{% endfor %}
    let one = vec4<f32>(1.0);
    let s = scale_pairs(head.yzw, sub);
    let d = half_scales(head.x);
    return d.x * dot(s.xy, vec2<f32>(dot(a, one), dot(b, one)))
        - d.y * dot(s.zw, vec2<f32>(dot(sum_a, one), dot(sum_b, one)));
