"""Mixtures of experts: the router, and the products with the experts of each row.

`router_topk` selects the routes of each row, and `routing` groups them by expert and sums the
results. `linear` multiplies in floating point, `int8` a small batch in int8, and `tiled` many rows
in tiles. `sigmoid_gate` weights the expert that all rows share.

The pattern `rdrr_runtime.compile.patterns.mixtures` leads here for one row,
`rdrr_runtime.compile.choice.experts` chooses the kernel of the products, and `lowering.experts` and
`lowering.mixtures` emit the phases.
"""
