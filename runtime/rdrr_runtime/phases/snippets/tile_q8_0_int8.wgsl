// Q8_0: 64 weights are two blocks of 9 words; a part is one of them.
alias Word{{ S }} = u32;

struct Raw{{ S }} {
    scale: f32,
    low: vec4<u32>,
    high: vec4<u32>,
}

// A row may end in the middle of a step, whose second block then counts for nothing: x is zero.
fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let block = base + min((2u * step + part) * 9u, ROW_WORDS{{ S }} - 9u);
    return Raw{{ S }}(
        bitcast<f32>(weight{{ S }}[block]),
        vec4<u32>(weight{{ S }}[block + 1u], weight{{ S }}[block + 2u], weight{{ S }}[block + 3u], weight{{ S }}[block + 4u]),
        vec4<u32>(weight{{ S }}[block + 5u], weight{{ S }}[block + 6u], weight{{ S }}[block + 7u], weight{{ S }}[block + 8u]),
    );
}

fn unpack{{ S }}(raw: Raw{{ S }}, row: u32, step: u32, part: u32) {
    tile_w{{ S }}[row + 2u * part * {{ TILE_N }}u] = raw.low;
    tile_w{{ S }}[row + (2u * part + 1u) * {{ TILE_N }}u] = raw.high;
    scale_w{{ S }}[row + part * {{ TILE_N }}u] = raw.scale;
}
