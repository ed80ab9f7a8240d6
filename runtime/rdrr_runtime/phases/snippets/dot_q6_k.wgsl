// Q6_K: a unit is 8 columns of one half: weights l, 32 + l, 64 + l and 96 + l share their bytes.
alias Word{{ S }} = vec2<u32>;

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base / 2u + (unit / 8u) * 27u;
    let half = (unit % 8u) / 4u;
    let column = unit % 4u;
    let a = weight{{ S }}[block + 8u * half + column];
    let b = weight{{ S }}[block + 8u * half + 4u + column];
    let h = weight{{ S }}[block + 16u + 4u * half + column];
    let pair = weight{{ S }}[block + 24u + half] >> vec2<u32>(8u * (column / 2u));
    let s = vec4<f32>(
        vec2<f32>(unpack4xI8(pair.x).xz), vec2<f32>(unpack4xI8(pair.y).xz)
    );
    let first = (unit / 8u) * 64u + 32u * half + 2u * column;
    var sums = vec4<f32>(0.0);
    for (var j = 0u; j < 2u; j++) {
        let q0 = (a[j] & 0x0f0f0f0fu) | ((h[j] & 0x03030303u) << 4u);
        let q1 = (b[j] & 0x0f0f0f0fu) | ((h[j] & 0x0c0c0c0cu) << 2u);
        let q2 = ((a[j] >> 4u) & 0x0f0f0f0fu) | (h[j] & 0x30303030u);
        let q3 = ((b[j] >> 4u) & 0x0f0f0f0fu) | ((h[j] & 0xc0c0c0c0u) >> 2u);
        sums += vec4<f32>(
            dot(vec4<f32>(unpack4xU8(q0)) - 32.0, staged[first + j]),
            dot(vec4<f32>(unpack4xU8(q1)) - 32.0, staged[first + 8u + j]),
            dot(vec4<f32>(unpack4xU8(q2)) - 32.0, staged[first + 16u + j]),
            dot(vec4<f32>(unpack4xU8(q3)) - 32.0, staged[first + 24u + j]),
        );
    }
    return bitcast<f32>(weight{{ S }}[block + 26u].x) * dot(s, sums);
}
