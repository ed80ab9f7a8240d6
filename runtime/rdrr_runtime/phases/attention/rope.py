"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) of queries or keys, in place."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.attention.head_transform import HeadTransform
from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class RotaryEmbedding(Record):
    """Parameters of rope.wgsl.

    Attributes:
        interleaved: Whether neighbouring elements form a pair.
        heads: Heads of a row.
        head_dim: Head dimension.
        pairs: Rotated pairs of a head.
    """

    shader = "attention/rope"

    value: str = choice()
    interleaved: bool = choice()
    heads: int
    head_dim: int
    pairs: int


def rope(
    ctx: OpContext,
    x: BufferSlice,
    table: BufferSlice,
    *,
    heads: int,
    head_dim: int,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    label: str,
) -> list[Phase]:
    """Rotate the first `rotary_dim` elements of each head by the row's position.

    Args:
        ctx: Lowering context; its state holds the positions.
        x: [rows, heads, head_dim].
        table: f32 [context, rotary_dim / 2, 2], cosine and sine, computed on the host.
        heads: Heads of a row.
        head_dim: Head dimension.
        rotary_dim: Rotated elements of a head; None for all of them.
        interleaved: Whether elements 2i and 2i + 1 form a pair, not i and i + rotary_dim / 2.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    need_multiple(f"{label}: rotary dimension", rotary_dim, 2)
    pairs = rotary_dim // 2
    HeadTransform(pairs, table).check(label, head_dim)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * heads * head_dim)
    record = RotaryEmbedding(
        threads=THREADS,
        value=ctx.values,
        interleaved=interleaved,
        heads=heads,
        head_dim=head_dim,
        pairs=pairs,
    )
    buffers = {"current": ctx.state.step, "table": table, "x": x}
    return [Phase(record, buffers, Work(-(-heads * pairs // THREADS), 1), label)]
