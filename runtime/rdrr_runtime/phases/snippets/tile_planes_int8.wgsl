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

{% include "snippets/planes.wgsl" %}

fn unpack{{ S }}(raw: Raw{{ S }}, at: u32, inverse: f32, part: u32) {
    let a = planes(quad(raw.a.x, raw.a.y), inverse);
    let b = planes(quad(raw.a.z, raw.a.w), inverse);
    let c = planes(quad(raw.b.x, raw.b.y), inverse);
    let d = planes(quad(raw.b.z, raw.b.w), inverse);
    tile_w{{ S }}[at + part * {{ TILE_N }}u] = vec4<u32>(a.x, b.x, c.x, d.x);
    tile_w{{ S }}[at + (4u + part) * {{ TILE_N }}u] = vec4<u32>(a.y, b.y, c.y, d.y);
}
