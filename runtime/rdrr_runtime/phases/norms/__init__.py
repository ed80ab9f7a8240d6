"""Norms of rows as phases of their own: RMSNorm, LayerNorm, and the residuals that they fuse.

`norm` normalizes in place, into another buffer, or with a residual after it.

In a decode pass most norms are no phase: products compute them with their inputs
(`rdrr_runtime.phases.products.fusion`) after a pattern of `rdrr_runtime.compile.patterns` has
matched a norm with the linears that read it. What no pattern takes is emitted by
`rdrr_runtime.compile.lowering.norms`.
"""
