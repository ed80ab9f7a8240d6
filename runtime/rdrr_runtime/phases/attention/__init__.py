"""Attention over the cache, and what happens to queries and keys before it.

`attention_decode` fuses norms, rope, store and attention of one row, and `norm_rope_store` all but
attention. `attention` and `attention_tiled` serve any number of rows. `rope`, `rope_tables`,
`position_scale` and `head_transform` rotate and scale queries and keys. `latent` and the modules
named after it are multi-head latent attention. `spec` holds the parameters that all share.

The patterns of `rdrr_runtime.compile.patterns.attention` lead here,
`rdrr_runtime.compile.choice.attention` chooses the general kernels, and `lowering.attention` and
`lowering.latent` emit the phases.
"""
