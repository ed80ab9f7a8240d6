// An f32 cache, 4 elements in 16 bytes.
alias KvWord = vec4<f32>;
alias TileWord = KvWord;

fn tile_unpack(word: TileWord) -> vec4<f32> {
    return word;
}
{% for cache in ("k", "v") %}

fn {{ cache }}_at(i: u32) -> vec4<f32> {
    return {{ cache }}_cache[i];
}

fn {{ cache }}_tile(i: u32) -> TileWord {
    return {{ cache }}_cache[i];
}
{% endfor %}

fn kv_pack(v: vec4<f32>) -> KvWord {
    return v;
}
