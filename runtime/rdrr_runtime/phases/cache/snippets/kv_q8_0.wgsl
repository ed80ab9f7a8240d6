// A Q8_0 cache: the codes of all elements, 4 in a word, and from word SCALES_AT of the keys, or
// SECOND_SCALES_AT of the values, on an f16 scale for each 32 elements, 2 in a word. element = scale * code.
alias KvWord = u32;
alias TileWord = vec4<f32>;

override SCALES_AT: u32;
override SECOND_SCALES_AT: u32;

{% include "snippets/half_scale.wgsl" %}

fn tile_unpack(word: TileWord) -> vec4<f32> {
    return word;
}
{% for cache in ("k", "v") %}

fn {{ cache }}_at(i: u32) -> vec4<f32> {
    let pair = {{ cache }}_cache[{{ "SECOND_" if cache == "v" }}SCALES_AT + i / 16u];
    let scale = half_scale((pair >> (2u * (i & 8u))) & 0xffffu);
    return scale * vec4<f32>(unpack4xI8({{ cache }}_cache[i]));
}

fn {{ cache }}_tile(i: u32) -> TileWord {
    return {{ cache }}_at(i);
}
{% endfor %}

{% include "snippets/abs_max.wgsl" %}
{% include "cache/snippets/range_mark.wgsl" %}

// f16 bits of the scale of elements whose largest magnitude has the bits `largest`. It is NaN if f16 does not hold
// it, as range_mark.wgsl says. Subnormal scales are assembled from bits, because pack2x16float may flush them to zero.
fn scale_bits(largest: u32) -> u32 {
    if (largest >= 0x4afdf020u) {  // 127 * 65520
        return range_marks(vec4<u32>(largest)).x;
    }
    let scale = min(bitcast<f32>(largest) / 127.0, 65504.0);
    let tiny = u32(round(scale * 16777216.0));  // in units of 2^-24
    return select(pack2x16float(vec2<f32>(scale, 0.0)), tiny, scale < 6.103515625e-5);
}

// Quantize four elements with a scale, given by its f16 bits.
fn codes(v: vec4<f32>, bits: u32) -> u32 {
    let scale = half_scale(bits);
    let inverse = select(0.0, 1.0 / scale, scale > 0.0);
    return pack4xI8Clamp(vec4<i32>(round(v * inverse)));
}
