// A cache of f16: 4 elements in 8 bytes. Needs no shader-f16. Values beyond the range of f16
// saturate, since an infinity would turn the softmax into NaN.
alias KvWord = vec2<u32>;

fn kv_unpack(word: KvWord) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y));
}

fn kv_pack(v: vec4<f32>) -> KvWord {
    let c = clamp(v, vec4<f32>(-65504.0), vec4<f32>(65504.0));
    return vec2<u32>(pack2x16float(c.xy), pack2x16float(c.zw));
}
