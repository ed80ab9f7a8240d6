{% if KV == "q8_0" %}
{% set NAME, VECTOR = "query", "query[i + j]" %}
{% include "cache/snippets/block_scale.wgsl" %}

// Keep the new key and value in `fresh`, and store them at word `first` of the caches if `stores`. A thread
// writes 4 codes; the first thread of each 64 elements also writes their two scales.
fn store_new(first: u32, stores: bool, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let target_word = first + i;
{% for cache in ("k", "v") %}
        let {{ cache }}_word = (GROUP + {{ loop.index0 }}u) * WORDS + i;
        let {{ cache }}_scale = query_scale({{ cache }}_word - i % 8u);
        let {{ cache }}_codes = codes(query[{{ cache }}_word], {{ cache }}_scale);
        if (stores) {
            {{ cache }}_cache[target_word] = {{ cache }}_codes;
        }
        fresh[{{ loop.index0 }}u * WORDS + i] = half_scale({{ cache }}_scale) * vec4<f32>(unpack4xI8({{ cache }}_codes));
        if (stores && i % 16u == 0u) {
            let after = query_scale({{ cache }}_word + 8u);
            {{ cache }}_cache[{{ "SECOND_" if cache == "v" }}SCALES_AT + target_word / 16u] = {{ cache }}_scale | (after << 16u);
        }
{% endfor %}
    }
}
{% else %}
// Keep the new key and value in `fresh`, and store them at word `first` of the caches if `stores`.
fn store_new(first: u32, stores: bool, t: u32) {
    for (var i = t; i < WORDS; i += WG) {
        let key = kv_pack(query[GROUP * WORDS + i]);
        let value = kv_pack(query[(GROUP + 1u) * WORDS + i]);
        if (stores) {
            k_cache[first + i] = key;
            v_cache[first + i] = value;
        }
        fresh[i] = key;
        fresh[WORDS + i] = value;
    }
}
{% endif %}
