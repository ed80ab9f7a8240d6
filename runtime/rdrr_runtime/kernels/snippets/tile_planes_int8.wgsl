// Single values in two planes of int8: a weight is 256 high + low, in units of its row's scale. 64
// weights are 8 words of 16 bytes; a part is 16 of them.
alias Word{{ S }} = vec4<u32>;
{% include "snippets/quad_" ~ SEGMENTS[S] ~ ".wgsl" %}

struct Raw{{ S }} {
    a: vec4<u32>,
    b: vec4<u32>,
}

// A row may end in the middle of a step; what is read instead counts for nothing: x is zero.
fn fetch{{ S }}(base: u32, step: u32, part: u32) -> Raw{{ S }} {
    let last = ROW_WORDS{{ S }} / 4u - 1u;
    let word = step * 8u + part * 2u;
    return Raw{{ S }}(weight{{ S }}[base / 4u + min(word, last)], weight{{ S }}[base / 4u + min(word + 1u, last)]);
}

// Four weights in units, as the lower 16 bits of f32 near 1.5 * 2^23. With 128 added, the upper byte
// of these is `high` and the lower byte is `low + 128`.
fn units{{ S }}(a: u32, b: u32, inverse: f32) -> vec4<u32> {
    return bitcast<vec4<u32>>(fma(quad(a, b), vec4<f32>(inverse), vec4<f32>(12582912.0 + 128.0)));
}

// `high` and `low` of four weights.
fn planes{{ S }}(v: vec4<u32>) -> vec2<u32> {
    let even = (v.x & 0xffffu) | (v.z << 16u);
    let odd = (v.y & 0xffffu) | (v.w << 16u);
    let mask = 0x00ff00ffu;
    return vec2<u32>(
        ((even >> 8u) & mask) | (odd & ~mask),
        ((even & mask) | ((odd << 8u) & ~mask)) ^ 0x80808080u,
    );
}

fn unpack{{ S }}(raw: Raw{{ S }}, at: u32, inverse: f32, part: u32) {
    let a = planes{{ S }}(units{{ S }}(raw.a.x, raw.a.y, inverse));
    let b = planes{{ S }}(units{{ S }}(raw.a.z, raw.a.w, inverse));
    let c = planes{{ S }}(units{{ S }}(raw.b.x, raw.b.y, inverse));
    let d = planes{{ S }}(units{{ S }}(raw.b.z, raw.b.w, inverse));
    tile_w{{ S }}[at + part * {{ TILE_N }}u] = vec4<u32>(a.x, b.x, c.x, d.x);
    tile_w{{ S }}[at + (4u + part) * {{ TILE_N }}u] = vec4<u32>(a.y, b.y, c.y, d.y);
}
