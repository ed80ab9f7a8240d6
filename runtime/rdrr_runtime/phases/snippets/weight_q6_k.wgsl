// Q6_K: 256 weights in 54 words: ql (32), qh (16), 16 signed byte scales (4), d as f32 (1),
// and a zero, so that words can be read in pairs.
// w = d sc_g (q - 32) for group g of 16. A unit takes 8 columns l of one half of 128:
// weights l, 32 + l, 64 + l and 96 + l share their bytes.
alias Word = u32;

fn q6(codes: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(codes)) - 32.0;
}

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base + (unit / 8u) * 54u;
    let half = (unit % 8u) / 4u;
    let column = unit % 4u;  // l / 8
    let d = bitcast<f32>(weight[block + 52u]);
    // Scales of the half: groups 8 half + 2 q + l / 16, q = 0..3.
    let scales = block + 48u + 2u * half;
    let pair = vec2<u32>(weight[scales], weight[scales + 1u]);
    let s01 = vec4<f32>(unpack4xI8(pair.x));
    let s23 = vec4<f32>(unpack4xI8(pair.y));
    let right = column >= 2u;
    let scale = d * select(vec4<f32>(s01.x, s01.z, s23.x, s23.z),
                           vec4<f32>(s01.y, s01.w, s23.y, s23.w), right);
{% for j in range(2) %}
    let a{{ j }} = weight[block + 16u * half + 2u * column + {{ j }}u];
    let b{{ j }} = weight[block + 16u * half + 2u * column + {{ 8 + j }}u];
    let h{{ j }} = weight[block + 8u * half + 2u * column + {{ 32 + j }}u];
    w[{{ j }}] = scale.x * q6((a{{ j }} & 0x0f0f0f0fu) | ((h{{ j }} & 0x03030303u) << 4u));
    w[{{ 2 + j }}] = scale.y * q6((b{{ j }} & 0x0f0f0f0fu) | ((h{{ j }} & 0x0c0c0c0cu) << 2u));
    w[{{ 4 + j }}] = scale.z * q6(((a{{ j }} >> 4u) & 0x0f0f0f0fu) | (h{{ j }} & 0x30303030u));
    w[{{ 6 + j }}] = scale.w * q6(((b{{ j }} >> 4u) & 0x0f0f0f0fu) | ((h{{ j }} & 0xc0c0c0c0u) >> 2u));
{% endfor %}
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    let within = (unit % 8u) / 4u * 128u + (unit % 4u) * 8u;
    return (unit / 8u) * 256u + within + (i / 2u) * 32u + (i % 2u) * 4u;
}
