// Q8_0: 64 weights are two blocks of 9 words; a part is one of them.
alias Word = u32;

struct Raw {
    scale: f32,
    low: vec4<u32>,
    high: vec4<u32>,
}

// A row may end in the middle of a step, whose second block then counts for nothing: x is zero.
fn fetch(base: u32, step: u32, part: u32) -> Raw {
    let block = base + min((2u * step + part) * 9u, ROW_WORDS - 9u);
    return Raw(
        bitcast<f32>(weight[block]),
        vec4<u32>(weight[block + 1u], weight[block + 2u], weight[block + 3u], weight[block + 4u]),
        vec4<u32>(weight[block + 5u], weight[block + 6u], weight[block + 7u], weight[block + 8u]),
    );
}

fn unpack(raw: Raw, row: u32, step: u32, part: u32) {
    tile_w[row + 2u * part * {{ TILE_N }}u] = raw.low;
    tile_w[row + (2u * part + 1u) * {{ TILE_N }}u] = raw.high;
    scale_w[row + part * {{ TILE_N }}u] = raw.scale;
}
