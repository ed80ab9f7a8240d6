// An f16 cache, 4 elements in 8 bytes; it does not need the feature shader-f16. What f16 does not hold is stored as
// NaN (see range_mark.wgsl), so that every logit that depends on it shows it.
// k_at and v_at return 4 elements; k_tile and v_tile return them as they are kept in workgroup memory.
alias KvWord = vec2<u32>;
alias TileWord = KvWord;

fn tile_unpack(word: TileWord) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y));
}

{% include "cache/snippets/range_mark.wgsl" %}
{% for cache in ("k", "v") %}

fn {{ cache }}_at(i: u32) -> vec4<f32> {
    return tile_unpack({{ cache }}_cache[i]);
}

fn {{ cache }}_tile(i: u32) -> TileWord {
    return {{ cache }}_cache[i];
}
{% endfor %}

fn kv_pack(v: vec4<f32>) -> KvWord {
    let magnitude = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    let beyond = magnitude >= vec4<u32>(0x477ff000u);  // 65520, the least number that does not round to 65504
    let marks = select(vec4<u32>(0u), range_marks(magnitude), beyond);
    let held = select(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), vec4<f32>(0.0), beyond);
    return vec2<u32>(pack2x16float(held.xy), pack2x16float(held.zw)) | marks.xz | (marks.yw << vec2<u32>(16u));
}
