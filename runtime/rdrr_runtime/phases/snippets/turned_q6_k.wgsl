// Turned Q6_K: a unit is 64 codes, 2 words of low nibbles and one of high bits; factors for each
// block of 256 outputs are d[k] as f32, then the int8 scales of each group of 16 outputs.

fn group_of{{ S }}(row: u32) -> vec2<u32> {
    let block = FACTORS{{ S }} + row / 256u * (5u * K_STAGED / 4u);
    return vec2<u32>(block, block + K_STAGED / 4u + row % 256u / 16u * (K_STAGED / 16u));
}

fn factor{{ S }}(group: vec2<u32>, i: u32, v: vec4<f32>) -> Scaled {
    let four = weight{{ S }}[group.y + i / 4u];
    let pair = select(four.xy, four.zw, (i & 2u) != 0u);
    let codes = vec4<f32>(unpack4xI8(select(pair.x, pair.y, (i & 1u) != 0u)));
    return Scaled(v * (bitcast<vec4<f32>>(weight{{ S }}[group.x + i]) * codes), 0.0);
}

// Codes of 16 elements, less 32, as int8: nibbles and the word with their high bits.
fn signed_codes{{ S }}(low: vec4<u32>, high: u32) -> vec4<u32> {
    let bits = (vec4<u32>(high) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
    let top = vec4<u32>(0x80808080u);
    return (((low & vec4<u32>(0x0f0f0f0fu)) | (bits << vec4<u32>(4u)) | top) - vec4<u32>(0x20202020u)) ^ top;
}

fn products{{ S }}(row: u32, unit: u32, at: u32) -> vec4<f32> {
    let first = (row * (K_STAGED / 64u) + unit) * 3u;
    let a = weight{{ S }}[first];
    let b = weight{{ S }}[first + 1u];
    let high = weight{{ S }}[first + 2u];
    let four = vec4<u32>(4u);
    return vec4<f32>(vec4<i32>(
        dot16(signed_codes{{ S }}(a, high.x), staged[at]),
        dot16(signed_codes{{ S }}(a >> four, high.y), staged[at + 1u]),
        dot16(signed_codes{{ S }}(b, high.z), staged[at + 2u]),
        dot16(signed_codes{{ S }}(b >> four, high.w), staged[at + 3u]),
    ));
}
