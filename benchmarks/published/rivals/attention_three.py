"""Causal attention in three dispatches with all scores in memory.

Scores by a tiled product, a softmax in place, values by a tiled product. The cache is in f32, and
there is no sliding window. Fused attention is measured beside it.
"""

from __future__ import annotations

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_runtime.phases.attention_spec import AttentionSpec
from rdrr_runtime.phases.context import OpContext, need_floats

from published.rivals.shaders import rival

TILE = 16
WORKGROUP = 128


def attention_three(
    ctx: OpContext,
    q: BufferSlice,
    k_cache: BufferSlice,
    v_cache: BufferSlice,
    scores: BufferSlice,
    out: BufferSlice,
    *,
    spec: AttentionSpec,
    label: str,
) -> list[Dispatch]:
    """Return the dispatches of attention of `ctx.max_rows` rows from slot 0 on.

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
    of_rows = {"BATCH": width, "ROW": heads * width}
    of_cache = {"BATCH": spec.cache.context * width, "ROW": width}
    of_scores = {"BATCH": rows * rows, "ROW": rows}
    softmax = rival(
        "softmax_causal",
        variables={"SUBGROUPS": ctx.subgroups},
        constants={"WG": WORKGROUP, "ROWS": rows},
    )
    return [
        _product(
            {"a": (q, of_rows), "b": (k_cache, of_cache), "c": (scores, of_scores)},
            (rows, rows, width),
            spec,
            transposed=True,
            label=f"{label}.scores",
        ),
        dispatch(softmax, {"s": scores}, Grid(rows, heads), f"{label}.softmax"),
        _product(
            {"a": (scores, of_scores), "b": (v_cache, of_cache), "c": (out, of_rows)},
            (rows, width, rows),
            spec,
            transposed=False,
            label=f"{label}.values",
        ),
    ]


def _product(
    operands: dict[str, tuple[BufferSlice, dict[str, int]]],
    sizes: tuple[int, int, int],
    spec: AttentionSpec,
    *,
    transposed: bool,
    label: str,
) -> Dispatch:
    m, n, k = sizes
    strides = {
        f"{name.upper()}_{kind}": value
        for name, (_, given) in operands.items()
        for kind, value in given.items()
    }
    what = rival(
        "matmul_batched",
        variables={"TRANSPOSED": transposed},
        constants={
            "M": m,
            "N": n,
            "K": k,
            "GROUP": spec.heads // spec.cache.kv_heads,
            "SCALE": spec.scale if transposed else 1.0,
            **strides,
        },
        variant="scores" if transposed else "values",
        trusted=True,
    )
    buffers = {name: buffer for name, (buffer, _) in operands.items()}
    return dispatch(what, buffers, Grid(-(-n // TILE), -(-m // TILE), spec.heads), label)
