// An f16 cache, 4 elements in 8 bytes; it does not need the feature shader-f16. Finite values beyond the range
// of f16 saturate, because an infinity would turn the softmax into NaN. Infinity and NaN stay, to be noticed.
// k_at and v_at return 4 elements; k_tile and v_tile return them as they are kept in workgroup memory.
alias KvWord = vec2<u32>;
alias TileWord = KvWord;

fn tile_unpack(word: TileWord) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y));
}
{% for cache in ("k", "v") %}

fn {{ cache }}_at(i: u32) -> vec4<f32> {
    return tile_unpack({{ cache }}_cache[i]);
}

fn {{ cache }}_tile(i: u32) -> TileWord {
    return {{ cache }}_cache[i];
}
{% endfor %}

fn kv_pack(v: vec4<f32>) -> KvWord {
    const INFINITY = vec4<u32>(0x7f800000u);
    let broken = (bitcast<vec4<u32>>(v) & INFINITY) == INFINITY;
    let c = select(clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0)), v, broken);
    return vec2<u32>(pack2x16float(c.xy), pack2x16float(c.zw));
}
