// Q6_K: a step is weights 0..63 or 64..127 of a half: low or high nibbles of its 64 bytes of ql,
// low or high bits of its 32 bytes of qh. A part is columns 0..15 or 16..31 of both 32 weights.
alias Word{{ S }} = vec2<u32>;

struct Raw{{ S }} {
    a: vec4<u32>,
    b: vec4<u32>,
    h: vec4<u32>,
    scales: u32,
    d: f32,
}

fn pair{{ S }}(at: u32) -> vec4<u32> {
    return vec4<u32>(weight{{ S }}[at], weight{{ S }}[at + 1u]);
}

fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let block = base / 2u + (step / 4u) * 27u;
    let half = (step % 4u) / 2u;
    let ql = block + 8u * half + 2u * part;
    let scales = weight{{ S }}[block + 24u + half];
    return Raw{{ S }}(
        pair{{ S }}(ql),
        pair{{ S }}(ql + 4u),
        pair{{ S }}(block + 16u + 4u * half + 2u * part),
        select(scales.x, scales.y, step % 2u == 1u),
        bitcast<f32>(weight{{ S }}[block + 26u].x),
    );
}

// 6-bit codes of four bytes, less 32, as int8.
fn centre{{ S }}(q: vec4<u32>) -> vec4<u32> {
    let top = vec4<u32>(0x80808080u);
    return ((q | top) - vec4<u32>(0x20202020u)) ^ top;
}

fn unpack{{ S }}(raw: Raw{{ S }}, row: u32, step: u32, part: u32) {
    let shift = vec4<u32>(4u * (step % 2u));
    let nibble = vec4<u32>(0x0f0f0f0fu);
    let h = raw.h >> shift;
    let first = ((raw.a >> shift) & nibble) | ((h & vec4<u32>(0x03030303u)) << vec4<u32>(4u));
    let second = ((raw.b >> shift) & nibble) | ((h & vec4<u32>(0x0c0c0c0cu)) << vec4<u32>(2u));
    tile_w{{ S }}[row + part * {{ TILE_N }}u] = centre{{ S }}(first);
    tile_w{{ S }}[row + (2u + part) * {{ TILE_N }}u] = centre{{ S }}(second);
    let s = unpack4xI8(raw.scales >> (8u * part));  // of columns 0..15 and 16..31, twice
    scale_w{{ S }}[row + part * {{ TILE_N }}u] = raw.d * f32(s.x);
    scale_w{{ S }}[row + (2u + part) * {{ TILE_N }}u] = raw.d * f32(s.z);
}
