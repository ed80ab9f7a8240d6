"""Patterns: runs of consecutive ops of a graph that fused kernels may serve together.

Matching is pure: it looks at ops and their operands, and knows no weights, kernels or devices.

    layers             a norm with the linears that read it, gated feed-forwards
    attention          attention with its projections
    rows               feed-forwards of more forms, and products, for kernels of one row
    mixtures           a mixture of experts
    linear_attention   linear attention
    residual           the end of a block, where its output joins the residual stream

`rdrr_runtime.compile.lowering.graph` tries them at each op. Modules of `lowering` emit the phases;
if no kernel can serve a match, its ops are lowered one by one.
"""
