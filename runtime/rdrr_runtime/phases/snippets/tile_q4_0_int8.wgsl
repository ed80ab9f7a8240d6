// Q4_0: 64 weights are two blocks of 5 words; a part is one of them.
alias Word{{ S }} = u32;

// Codes of four bytes, less 8, as int8.
fn centre{{ S }}(q: vec4<u32>) -> vec4<u32> {
    let top = vec4<u32>(0x80808080u);
    return ((q | top) - vec4<u32>(0x08080808u)) ^ top;
}

struct Raw{{ S }} {
    scale: u32,
    codes: vec4<u32>,
}

// A row may end in the middle of a step, whose second block then counts for nothing: x is zero.
fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let block = base + min((2u * step + part) * 5u, ROW_WORDS{{ S }} - 5u);
    return Raw{{ S }}(
        weight{{ S }}[block],
        vec4<u32>(weight{{ S }}[block + 1u], weight{{ S }}[block + 2u], weight{{ S }}[block + 3u], weight{{ S }}[block + 4u]),
    );
}

fn unpack{{ S }}(raw: Raw{{ S }}, row: u32, step: u32, part: u32) {
    let nibble = vec4<u32>(0x0f0f0f0fu);
    tile_w{{ S }}[row + 2u * part * {{ TILE_N }}u] = centre{{ S }}(raw.codes & nibble);
    tile_w{{ S }}[row + (2u * part + 1u) * {{ TILE_N }}u] =
        centre{{ S }}((raw.codes >> vec4<u32>(4u)) & nibble);
    scale_w{{ S }}[row + part * {{ TILE_N }}u] = bitcast<f32>(raw.scale);
}
