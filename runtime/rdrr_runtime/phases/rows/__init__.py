"""Ops on single rows that need neither a cache nor a product.

Rows are looked up (`embed`, `position_embed`), pass an activation (`activation`,
`gated_activation`), are multiplied or converted (`elementwise`), or copied in whole or in part
(`copy`, `slice`, `concat`). `sparsify` keeps the largest elements of a row.
`inject` puts features of images into the rows that are tokens of images.

`rdrr_runtime.compile.lowering.ops` emits them where an op of the graph stands alone. Patterns avoid
most of them: products compute a gated activation or a conversion with their outputs, and attention
reads the slices of its queries in place.
"""
