// Q5_K: 64 weights are 32 bytes of nibbles and two bits of each of the 32 bytes of fifth bits; a part
// is 16 of these bytes, and one of the two scales.
alias Word{{ S }} = vec4<u32>;
{% include "snippets/q4_k_header.wgsl" %}

struct Raw{{ S }} {
    head: vec4<u32>,
    nibbles: vec4<u32>,
    fifth: vec4<u32>,
}

fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let block = base / 4u + (step / 4u) * 11u;
    return Raw{{ S }}(
        weight{{ S }}[block],
        weight{{ S }}[block + 3u + 2u * (step % 4u) + part],
        weight{{ S }}[block + 1u + part] >> vec4<u32>(2u * (step % 4u)),
    );
}

fn unpack{{ S }}(raw: Raw{{ S }}, row: u32, step: u32, part: u32) {
    let mask = vec4<u32>(0x0f0f0f0fu);
    tile_w{{ S }}[row + part * {{ TILE_N }}u] =
        (raw.nibbles & mask) | ((raw.fifth & vec4<u32>(0x01010101u)) << vec4<u32>(4u));
    tile_w{{ S }}[row + (2u + part) * {{ TILE_N }}u] = ((raw.nibbles >> vec4<u32>(4u)) & mask)
        | ((raw.fifth & vec4<u32>(0x02020202u)) << vec4<u32>(3u));
    let s = scale_pairs(raw.head.yzw, 2u * (step % 4u));
    scale_w{{ S }}[row + part * {{ TILE_N }}u] =
        half_scales(raw.head.x) * select(s.xz, s.yw, part == 1u);
}
