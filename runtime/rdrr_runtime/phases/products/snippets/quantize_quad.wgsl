// Quantization of 4 elements of a group to int8; {{ SHARING }} consecutive threads have the elements of a group. Calls are in
// uniform control flow, with t = subgroup subgroup_size + lane where a subgroup has {{ LANES_TOGETHER }} threads or more.
var<workgroup> exchanged: array<u32, WG>;  // only where it has fewer

// What thread t ^ distance has, with distance < {{ LANES_TOGETHER }}.
fn of_other(value: u32, distance: u32, t: u32, subgroup_size: u32) -> u32 {
{% if SUBGROUPS %}
    if (subgroup_size >= {{ LANES_TOGETHER }}u) {
        return subgroupShuffleXor(value, distance);
    }
{% endif %}
    workgroupBarrier();  // other threads may still be reading the result of an earlier call
    exchanged[t] = value;
    workgroupBarrier();
    return exchanged[t ^ distance];
}

struct Quad {
    codes: u32,
    scale: f32,  // of the group
{% if SUMMED %}
    sum: i32,    // of the codes of the group
{% endif %}
}

fn quantized(v: vec4<f32>, t: u32, subgroup_size: u32) -> Quad {
    var largest = bits_of_abs_max(v);
{% for distance in (1, 2, 4) if distance < SHARING %}
    largest = max(largest, of_other(largest, {{ distance }}u, t, subgroup_size));
{% endfor %}
    let amax = bitcast<f32>(largest);
    let inverse = select(0.0, 127.0 / amax, amax > 0.0);
    let codes = pack4xI8(vec4<i32>(round(v * inverse)));
{% if SUMMED %}
    var sum = dot4I8Packed(codes, 0x01010101u);
{% for distance in (1, 2, 4) if distance < SHARING %}
    sum += bitcast<i32>(of_other(bitcast<u32>(sum), {{ distance }}u, t, subgroup_size));
{% endfor %}
{% endif %}
    return Quad(codes, amax / 127.0{{ ", sum" if SUMMED }});
}
