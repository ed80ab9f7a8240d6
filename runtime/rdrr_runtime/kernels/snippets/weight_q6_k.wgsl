// Q6_K: 256 weights in 53 words: ql (32), qh (16), 16 signed byte scales (4), d as f32 (1).
// w = d sc_g (q - 32) for group g of 16. A unit takes 8 columns l of one half of 128:
// weights l, 32 + l, 64 + l and 96 + l share their bytes.
alias Word = u32;

fn load_unit(base: u32, unit: u32) -> array<vec4<f32>, 8> {
    var w: array<vec4<f32>, 8>;
    let block = base + (unit / 8u) * 53u;
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
    for (var j = 0u; j < 2u; j++) {
        let at = 2u * column + j;
        let a = weight[block + 16u * half + at];
        let b = weight[block + 16u * half + 8u + at];
        let h = weight[block + 32u + 8u * half + at];
        let q0 = (a & 0x0f0f0f0fu) | ((h & 0x03030303u) << 4u);
        let q1 = (b & 0x0f0f0f0fu) | ((h & 0x0c0c0c0cu) << 2u);
        let q2 = ((a >> 4u) & 0x0f0f0f0fu) | (h & 0x30303030u);
        let q3 = ((b >> 4u) & 0x0f0f0f0fu) | ((h & 0xc0c0c0c0u) >> 2u);
        w[j] = scale.x * (vec4<f32>(unpack4xU8(q0)) - 32.0);
        w[2u + j] = scale.y * (vec4<f32>(unpack4xU8(q1)) - 32.0);
        w[4u + j] = scale.z * (vec4<f32>(unpack4xU8(q2)) - 32.0);
        w[6u + j] = scale.w * (vec4<f32>(unpack4xU8(q3)) - 32.0);
    }
    return w;
}

fn unit_element(unit: u32, i: u32) -> u32 {
    let within = (unit % 8u) / 4u * 128u + (unit % 4u) * 8u;
    return (unit / 8u) * 256u + within + (i / 2u) * 32u + (i % 2u) * 4u;
}
