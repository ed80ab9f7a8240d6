"""Matrix products, with the ops that they fuse.

`matvec` multiplies one row and `matvec_rows` a small batch of rows in int8; both take the ops of
`fusion` with their inputs and outputs (norm, gates, activation, residual), `matvec` also
`added_branch` and `down`. `linear` multiplies in floating point, and `matmul_int8` many rows in
tiles; `matmul_subgroup` multiplies many rows in f16 where subgroups multiply matrices. They fuse
nothing but a bias and a residual. `quantize_small_batch`, `quantize_rows` and `requantize` round
what the int8 products read, `half_rows` what those in f16 read.

The patterns of `rdrr_runtime.compile.patterns.layers`, `rows` and `residual` lead here,
`rdrr_runtime.compile.choice.products` chooses the kernel, and `lowering.products` emits it.
"""
