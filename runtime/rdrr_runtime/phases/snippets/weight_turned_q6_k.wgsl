// Turned Q6_K, see turn_blocks.wgsl: a unit is 32 consecutive weights of a row.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let n = base / ROW_WORDS;
    let block = FACTORS + n / 256u * (5u * K_TURNED / 4u);
    let group = block + K_TURNED / 4u + n % 256u / 16u * (K_TURNED / 16u);
    let first = base / 4u + unit / 2u * 3u;
    let nibbles = weight[first + unit % 2u];
    let high4 = weight[first + 2u];
    let high = select(high4.xy, high4.zw, unit % 2u == 1u);
    let low0 = nibbles & vec4<u32>(0x0f0f0f0fu);
    let low1 = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    let scales0 = weight[group + unit * 2u];
    let scales1 = weight[group + unit * 2u + 1u];
{% for i in range(8) %}
    let code{{ i }} = low{{ i // 4 }}[{{ i % 4 }}] | (((high.{{ "xy"[i // 4] }} >> {{ 2 * (i % 4) }}u) & 0x03030303u) << 4u);
    let d{{ i }} = bitcast<vec4<f32>>(weight[block + unit * 8u + {{ i }}u]);
    w[{{ i }}] = d{{ i }} * vec4<f32>(unpack4xI8(scales{{ i // 4 }}[{{ i % 4 }}])) * (vec4<f32>(unpack4xU8(code{{ i }})) - 32.0);
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
