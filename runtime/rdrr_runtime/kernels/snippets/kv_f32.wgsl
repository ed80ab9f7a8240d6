// A cache of f32: 4 elements in 16 bytes.
alias KvWord = vec4<f32>;

fn kv_unpack(word: KvWord) -> vec4<f32> {
    return word;
}

fn kv_pack(v: vec4<f32>) -> KvWord {
    return v;
}
