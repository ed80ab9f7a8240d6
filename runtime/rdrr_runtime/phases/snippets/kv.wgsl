// The caches of keys and values, {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM], of which a word
// holds 4 elements.
{% include "snippets/kv_" ~ KV ~ ".wgsl" %}

override KV_HEADS: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;

// First slot of a key-value head of a sequence, counted from the beginning of the cache.
fn first_slot(sequence: u32, kv_head: u32) -> u32 {
    return (sequence * KV_HEADS + kv_head) * CONTEXT;
}
