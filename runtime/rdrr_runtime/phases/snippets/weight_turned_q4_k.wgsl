// Turned Q4_K, see turn_blocks.wgsl: a unit is 32 consecutive weights of a row.
alias Word = vec4<u32>;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let n = base / ROW_WORDS;
    let block = FACTORS + n / 256u * (6u * K_TURNED / 4u);
    let group = block + 2u * K_TURNED / 4u + n % 256u / 32u * (K_TURNED / 8u);
    let nibbles = weight[base / 4u + unit];
    let low = nibbles & vec4<u32>(0x0f0f0f0fu);
    let high = (nibbles >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
{% for i in range(8) %}
{% set half = "low" if i < 4 else "high" %}
{% if i % 2 == 0 %}
    let pairs{{ i // 2 }} = weight[group + unit * 4u + {{ i // 2 }}u];
{% endif %}
    let d{{ i }} = bitcast<vec4<f32>>(weight[block + unit * 8u + {{ i }}u]);
    let least{{ i }} = bitcast<vec4<f32>>(weight[block + K_TURNED / 4u + unit * 8u + {{ i }}u]);
    w[{{ i }}] = d{{ i }} * vec4<f32>(unpack4xU8(pairs{{ i // 2 }}.{{ "xz"[i % 2] }})) * vec4<f32>(unpack4xU8({{ half }}[{{ i % 4 }}]))
        - least{{ i }} * vec4<f32>(unpack4xU8(pairs{{ i // 2 }}.{{ "yw"[i % 2] }}));
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    return unit * 32u + i * 4u;
}
