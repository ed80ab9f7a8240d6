"""Lowering: from ops and patterns to the phases of a pass.

`graph` walks the ops of a graph. Where a pattern begins it calls `layers`, `rows`, `attention`,
`mixtures` or `linear_attention`, otherwise `ops`, whose table has one row for each op. The modules
named after kinds of op (`attention`, `latent`, `experts`, `norms`, `products`, `states`, `streams`,
`mtp`) emit their phases, and `head` ends a pass. `inputs` and `down` join products with the norms
before them and the products after them.

`builder` is a pass under construction; `values` gives its intermediate values their buffers.
"""
