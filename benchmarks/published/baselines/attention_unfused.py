"""Unfused causal attention: three dispatches, with all scores in memory.

A tiled product computes the scores, the second dispatch takes their softmax in place, and another
tiled product multiplies them with the values. The cache is in f32, and there is no sliding window.
It is the baseline of fused attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice

from published.baselines.baseline_kernel import BaselineKernel

TILE = 16
WORKGROUP = 128


@dataclass(frozen=True, kw_only=True)
class SoftmaxCausal(BaselineKernel):
    """Parameters of softmax_causal.wgsl.

    Attributes:
        subgroups: Whether reductions use subgroup operations.
        rows: Token rows.
    """

    shader = "softmax_causal"

    subgroups: bool = choice()
    rows: int


@dataclass(frozen=True, kw_only=True)
class MatmulBatched(BaselineKernel):
    """Parameters of matmul_batched.wgsl, a product of [m, k] by [k, n] for each head.

    Attributes:
        transposed: Whether the right operand is stored as [n, k] instead of [k, n].
        m: Rows of the result.
        n: Columns of the result.
        k: Length of the dot products.
        group: Query heads that share a right operand.
        scale: Factor of the result.
        a_batch: Stride between left operands, in elements.
        a_row: Stride between rows of the left operand, in elements.
        b_batch: Stride between right operands, in elements.
        b_row: Stride between rows of the right operand, in elements.
        c_batch: Stride between results, in elements.
        c_row: Stride between rows of the result, in elements.
    """

    shader = "matmul_batched"
    trusted = True

    transposed: bool = choice()
    m: int
    n: int
    k: int
    group: int
    scale: float
    a_batch: int
    a_row: int
    b_batch: int
    b_row: int
    c_batch: int
    c_row: int


def attention_unfused(
    ctx: OpContext,
    q: BufferSlice,
    k_cache: BufferSlice,
    v_cache: BufferSlice,
    scores: BufferSlice,
    out: BufferSlice,
    *,
    spec: AttentionSpec,
    label: str,
) -> list[Phase]:
    """Return the phases of attention for `ctx.max_rows` token rows at slots 0 and up.

    All rows are computed, regardless of how many rows a step has.

    Args:
        ctx: Context of the step.
        q: f32 [rows, heads, head_dim].
        k_cache: f32 [kv_heads, context, head_dim].
        v_cache: f32 [kv_heads, context, head_dim].
        scores: Scratch memory, f32 [heads, rows, rows].
        out: f32 [rows, heads, head_dim].
        spec: Numbers of heads, head dimension and scale.
        label: Name in messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    rows, heads, width = ctx.max_rows, spec.heads, spec.cache.head_dim
    need_floats(f"{label}: scores", scores, heads * rows * rows)
    of_rows, of_cache, of_scores = (
        (width, heads * width),
        (spec.cache.context * width, width),
        (rows * rows, rows),
    )
    softmax = SoftmaxCausal(threads=WORKGROUP, subgroups=ctx.subgroups, rows=rows)
    return [
        _product(
            spec,
            (rows, rows, width),
            {"a": (q, of_rows), "b": (k_cache, of_cache), "c": (scores, of_scores)},
            transposed=True,
            label=f"{label}.scores",
        ),
        Phase(softmax, {"s": scores}, Work(rows * heads), f"{label}.softmax"),
        _product(
            spec,
            (rows, width, rows),
            {"a": (scores, of_scores), "b": (v_cache, of_cache), "c": (out, of_rows)},
            transposed=False,
            label=f"{label}.values",
        ),
    ]


def _product(
    spec: AttentionSpec,
    sizes: tuple[int, int, int],
    operands: dict[str, tuple[BufferSlice, tuple[int, int]]],
    *,
    transposed: bool,
    label: str,
) -> Phase:
    m, n, k = sizes
    (a_batch, a_row), (b_batch, b_row), (c_batch, c_row) = (steps for _, steps in operands.values())
    record = MatmulBatched(
        threads=TILE * TILE,
        variant="scores" if transposed else "values",
        transposed=transposed,
        m=m,
        n=n,
        k=k,
        group=spec.heads // spec.cache.kv_heads,
        scale=spec.scale if transposed else 1.0,
        a_batch=a_batch,
        a_row=a_row,
        b_batch=b_batch,
        b_row=b_row,
        c_batch=c_batch,
        c_row=c_row,
    )
    work = Work(-(-n // TILE) * -(-m // TILE) * spec.heads)
    return Phase(record, {name: part for name, (part, _) in operands.items()}, work, label)
