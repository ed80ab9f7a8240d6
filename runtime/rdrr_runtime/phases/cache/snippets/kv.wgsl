// Key and value caches, {{ KV }} [sequences, KV_HEADS, CONTEXT, HEAD_DIM], with 4 elements in a KvWord.
{% include "cache/snippets/kv_" ~ KV ~ ".wgsl" %}

override KV_HEADS: u32;
override HEAD_DIM: u32;
override CONTEXT: u32;

// Index of the first slot of a key-value head of a sequence, counted from the beginning of the cache.
fn first_slot(sequence: u32, kv_head: u32) -> u32 {
    return (sequence * KV_HEADS + kv_head) * CONTEXT;
}
