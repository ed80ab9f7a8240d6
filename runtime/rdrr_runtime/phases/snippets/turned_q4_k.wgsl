// Turned Q4_K: a unit is 64 codes of 4 bits in 2 words; factors for each block of 256 outputs are
// d[k] and dmin[k] as f32, then (scale, minimum) of each group of 32 outputs, four k to a pair.

fn group_of{{ S }}(row: u32) -> vec2<u32> {
    let block = FACTORS{{ S }} + row / 256u * (6u * K_STAGED / 4u);
    return vec2<u32>(block, block + 2u * K_STAGED / 4u + row % 256u / 32u * (K_STAGED / 8u));
}

fn factor{{ S }}(group: vec2<u32>, i: u32, v: vec4<f32>) -> Scaled {
    let pairs = weight{{ S }}[group.y + i / 2u];
    let pair = select(pairs.xy, pairs.zw, i % 2u == 1u);
    let d = bitcast<vec4<f32>>(weight{{ S }}[group.x + i]);
    let least = bitcast<vec4<f32>>(weight{{ S }}[group.x + K_STAGED / 4u + i]);
    return Scaled(
        v * (d * vec4<f32>(unpack4xU8(pair.x))), dot(v, least * vec4<f32>(unpack4xU8(pair.y)))
    );
}

fn products{{ S }}(row: u32, unit: u32, at: u32) -> vec4<f32> {
    let first = (row * (K_STAGED / 64u) + unit) * 2u;
    let a = weight{{ S }}[first];
    let b = weight{{ S }}[first + 1u];
    let nibble = vec4<u32>(0x0f0f0f0fu);
    let four = vec4<u32>(4u);
    return vec4<f32>(vec4<i32>(
        dot16(a & nibble, staged[at]),
        dot16((a >> four) & nibble, staged[at + 1u]),
        dot16(b & nibble, staged[at + 2u]),
        dot16((b >> four) & nibble, staged[at + 3u]),
    ));
}
