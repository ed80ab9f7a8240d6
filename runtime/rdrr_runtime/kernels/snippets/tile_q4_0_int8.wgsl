// Q4_0: 64 weights are two blocks of 5 words; a part is one of them.
alias Word = u32;

// Codes of four bytes, less 8, as int8.
fn centre(q: vec4<u32>) -> vec4<u32> {
    let top = vec4<u32>(0x80808080u);
    return ((q | top) - vec4<u32>(0x08080808u)) ^ top;
}

struct Raw {
    scale: u32,
    codes: vec4<u32>,
}

// A row may end in the middle of a step, whose second block then counts for nothing: x is zero.
fn fetch(base: u32, step: u32, part: u32) -> Raw {
    let block = base + min((2u * step + part) * 5u, ROW_WORDS - 5u);
    return Raw(
        weight[block],
        vec4<u32>(weight[block + 1u], weight[block + 2u], weight[block + 3u], weight[block + 4u]),
    );
}

fn unpack(raw: Raw, row: u32, step: u32, part: u32) {
    let nibble = vec4<u32>(0x0f0f0f0fu);
    tile_w[row + 2u * part * {{ TILE_N }}u] = centre(raw.codes & nibble);
    tile_w[row + (2u * part + 1u) * {{ TILE_N }}u] =
        centre((raw.codes >> vec4<u32>(4u)) & nibble);
    scale_w[row + part * {{ TILE_N }}u] = bitcast<f32>(raw.scale);
}
