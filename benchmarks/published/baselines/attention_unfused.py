"""Causal attention in three dispatches with all scores in memory.

Scores by a tiled product, a softmax in place, values by a tiled product. The cache is in f32, and
there is no sliding window. Fused attention is measured beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.attention_spec import AttentionSpec
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice

from published.baselines.baseline_kernel import BaselineKernel

TILE = 16
WORKGROUP = 128


@dataclass(frozen=True, kw_only=True)
class SoftmaxCausal(BaselineKernel):
    """Parameters of softmax_causal.wgsl.

    Attributes:
        subgroups: Whether sums go through subgroup operations.
        rows: Token rows.
    """

    shader = "softmax_causal"

    subgroups: bool = choice()
    rows: int


@dataclass(frozen=True, kw_only=True)
class MatmulBatched(BaselineKernel):
    """Parameters of matmul_batched.wgsl, a product of [m, k] by [k, n] for each head.

    Attributes:
        transposed: Whether the right operand lies as [n, k].
        m: Rows of the result.
        n: Columns of the result.
        k: Elements of a sum.
        group: Heads that share a right operand.
        scale: Factor of the result.
        a_batch: Elements from one left operand to the next.
        a_row: Elements from one row of the left operand to the next.
        b_batch: As `a_batch`, of the right operand.
        b_row: As `a_row`, of the right operand.
        c_batch: As `a_batch`, of the result.
        c_row: As `a_row`, of the result.
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
    """Return the phases of attention of `ctx.max_rows` rows from slot 0 on.

    All rows are computed, whatever the step holds.

    Args:
        ctx: Context of the step.
        q: f32 [rows, heads, head_dim].
        k_cache: f32 [kv_heads, context, head_dim].
        v_cache: f32 [kv_heads, context, head_dim].
        scores: Scratch memory, f32 [heads, rows, rows].
        out: f32 [rows, heads, head_dim].
        spec: Heads, widths and scale.
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
    (a_batch, a_row), (b_batch, b_row), (c_batch, c_row) = (one for _, one in operands.values())
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
    return Phase(record, {name: one for name, (one, _) in operands.items()}, work, label)
