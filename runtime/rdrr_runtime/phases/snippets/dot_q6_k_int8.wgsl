// Q6_K: a unit is 8 columns of one half: weights l, 32 + l, 64 + l and 96 + l share their bytes.
alias Word{{ S }} = vec2<u32>;
{% if S == 0 or "q6_k" not in SEGMENTS[:S] %}

// 6-bit codes of four bytes, less 32, as int8.
fn centre(q: vec2<u32>) -> vec2<u32> {
    let top = vec2<u32>(0x80808080u);
    return ((q | top) - vec2<u32>(0x20202020u)) ^ top;
}
{% endif %}

fn dot_unit{{ S }}(base: u32, unit: u32) -> f32 {
    let block = base / 2u + (unit / 8u) * 27u;
    let half = (unit % 8u) / 4u;
    let column = unit % 4u;
    let a = weight{{ S }}[block + 8u * half + column];
    let b = weight{{ S }}[block + 8u * half + 4u + column];
    let h = weight{{ S }}[block + 16u + 4u * half + column];
    let nibble = vec2<u32>(0x0f0f0f0fu);
    let q0 = centre((a & nibble) | ((h & vec2<u32>(0x03030303u)) << vec2<u32>(4u)));
    let q1 = centre((b & nibble) | ((h & vec2<u32>(0x0c0c0c0cu)) << vec2<u32>(2u)));
    let q2 = centre(((a >> vec2<u32>(4u)) & nibble) | (h & vec2<u32>(0x30303030u)));
    let q3 = centre(((b >> vec2<u32>(4u)) & nibble) | ((h & vec2<u32>(0xc0c0c0c0u)) >> vec2<u32>(2u)));
    let at = (unit / 8u) * 16u + 8u * half + column / 2u;  // of 16 elements
    let word = 2u * (column % 2u);
    let products = vec4<i32>(
        dot4I8Packed(q0.x, staged[at][word]) + dot4I8Packed(q0.y, staged[at][word + 1u]),
        dot4I8Packed(q1.x, staged[at + 2u][word]) + dot4I8Packed(q1.y, staged[at + 2u][word + 1u]),
        dot4I8Packed(q2.x, staged[at + 4u][word]) + dot4I8Packed(q2.y, staged[at + 4u][word + 1u]),
        dot4I8Packed(q3.x, staged[at + 6u][word]) + dot4I8Packed(q3.y, staged[at + 6u][word + 1u]),
    );
    let pair = weight{{ S }}[block + 24u + half] >> vec2<u32>(8u * (column / 2u));
    let s = vec4<f32>(
        vec2<f32>(unpack4xI8(pair.x).xz), vec2<f32>(unpack4xI8(pair.y).xz)
    );
    let by16 = vec4<f32>(scales[at], scales[at + 2u], scales[at + 4u], scales[at + 6u]);
    return bitcast<f32>(weight{{ S }}[block + 26u].x) * dot(s * by16, vec4<f32>(products));
}
