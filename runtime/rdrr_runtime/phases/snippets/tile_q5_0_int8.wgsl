// Q5_0: 64 weights are two blocks of 6 words; a part is one of them.
alias Word{{ S }} = u32;
{% if not (SEGMENTS[:S] | select("in", ["q5_0", "q5_1"]) | list) %}
{% include "snippets/fifth_bits.wgsl" %}
{% endif %}

fn fifth_bits4{{ S }}(bits: u32) -> vec4<u32> {
    return vec4<u32>(
        fifth_bits(bits), fifth_bits(bits >> 4u), fifth_bits(bits >> 8u), fifth_bits(bits >> 12u)
    );
}

// Codes of four bytes, less 16, as int8.
fn centre{{ S }}(q: vec4<u32>) -> vec4<u32> {
    let top = vec4<u32>(0x80808080u);
    return ((q | top) - vec4<u32>(0x10101010u)) ^ top;
}

struct Raw{{ S }} {
    scale: u32,
    fifth: u32,
    codes: vec4<u32>,
}

// A row may end in the middle of a step, whose second block then counts for nothing: x is zero.
fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let block = base + min((2u * step + part) * 6u, ROW_WORDS{{ S }} - 6u);
    return Raw{{ S }}(
        weight{{ S }}[block],
        weight{{ S }}[block + 1u],
        vec4<u32>(weight{{ S }}[block + 2u], weight{{ S }}[block + 3u], weight{{ S }}[block + 4u], weight{{ S }}[block + 5u]),
    );
}

fn unpack{{ S }}(raw: Raw{{ S }}, row: u32, step: u32, part: u32) {
    let nibble = vec4<u32>(0x0f0f0f0fu);
    tile_w{{ S }}[row + 2u * part * {{ TILE_N }}u] = centre{{ S }}((raw.codes & nibble) | fifth_bits4{{ S }}(raw.fifth));
    tile_w{{ S }}[row + (2u * part + 1u) * {{ TILE_N }}u] =
        centre{{ S }}(((raw.codes >> vec4<u32>(4u)) & nibble) | fifth_bits4{{ S }}(raw.fifth >> 16u));
    scale_w{{ S }}[row + part * {{ TILE_N }}u] = bitcast<f32>(raw.scale);
}
