// 32 values in int8: value = scale code, with scale = max|value| / 127.
struct Int8Group {
    first: vec4<u32>,  // codes 0 to 15
    last: vec4<u32>,   // codes 16 to 31
    scale: f32,
    sum: i32,          // of the codes
}

{% include "snippets/abs_max.wgsl" %}

fn int8_group(v: array<vec4<f32>, 8>) -> Int8Group {
    var bits = 0u;
{% for i in range(8) %}
    bits = max(bits, bits_of_abs_max(v[{{ i }}]));
{% endfor %}
    let amax = bitcast<f32>(bits);
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    var sums = vec4<i32>(0);
{% for i in range(8) %}
    let q{{ i }} = vec4<i32>(round(v[{{ i }}] * inverse));
    sums += q{{ i }};
{% endfor %}
    return Int8Group(
        vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3)),
        vec4<u32>(pack4xI8(q4), pack4xI8(q5), pack4xI8(q6), pack4xI8(q7)),
        amax / 127.0,
        sums.x + sums.y + sums.z + sums.w,
    );
}
