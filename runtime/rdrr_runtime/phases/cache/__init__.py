"""What sequences keep on the GPU between passes, and the phases that store it.

`kv_cache` is the key-value cache, to which `kv_store` writes new keys and values. `state_cache`
holds the recurrent states of sequences, and `state_positions` says which tokens they contain.
`kept_hidden` holds the hidden states that a draft head reads. `snippets/kv.wgsl` reads and writes
the cache in each of its types.

`rdrr_runtime.compile.lowering.attention` emits the store where no kernel fuses it with attention;
`lowering.mtp` emits the copies of hidden states.
"""
