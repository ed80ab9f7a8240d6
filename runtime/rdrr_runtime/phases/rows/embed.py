"""Embedding: look up the table row of each token, dequantize it and scale it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weights.binding import WeightsRecord, bind_parts
from rdrr_runtime.phases.weights.checks import half_units, need_rows
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

THREADS = 32
CANDIDATES = (8, 16, 32, 64, 128, 256)
"""Threads of a workgroup, each of which dequantizes 32 weights of a row."""


@dataclass(frozen=True, kw_only=True)
class TableRecord(WeightsRecord):
    """Parameters of shaders that read rows of a table.

    Attributes:
        k: Elements of a row.
    """

    value: str = choice()
    k: int
    units: int
    outputs: int
    first: int


@dataclass(frozen=True, kw_only=True)
class EmbedRecord(TableRecord):
    """Parameters of embed.wgsl.

    Attributes:
        scale: Factor on every value.
        clears: Whether the phase also clears memory for a later one.
        cleared_words: Words that it clears.
    """

    shader = "rows/embed"
    general = True

    rows: int
    scale: float
    clears: bool = choice(default=False)
    cleared_words: int | None = None

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return self.outputs == self.rows


def bound_parts(
    ctx: OpContext, table: GpuWeight, x: BufferSlice, label: str
) -> Iterator[tuple[dict[str, Any], dict[str, BufferSlice]]]:
    """Yield the fields of a `TableRecord`, and the buffers, for each part of a table.

    Args:
        ctx: Lowering context.
        table: [rows, hidden], in any format except column-major unquantized values.
        x: What is written, [rows of a pass, hidden].
        label: Name of the op, for messages.

    Raises:
        FormatError: The table is column-major and unquantized, no kernel supports its size, or a
            buffer is too small.
    """
    need_rows(table, label)
    need_multiple(f"{label}: hidden size", table.k, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * table.k)
    for bound in bind_parts(table):
        part = bound.parts[0]
        fields = {
            "variant": table.dtype.name.lower(),
            "value": ctx.values,
            "k": table.k,
            "units": half_units(table.k),
            "outputs": table.outputs(part),
            "first": part.first_row,
            **bound.fields,
        }
        yield fields, {"current": ctx.state.step, "x": x, **bound.buffers}


def embed(
    ctx: OpContext,
    table: GpuWeight,
    x: BufferSlice,
    *,
    scale: float = 1.0,
    cleared: BufferSlice | None = None,
    label: str,
) -> list[Phase]:
    """Embed tokens: x[r, :] = scale * table[t, :], where t is the token of row r.

    A token beyond the table reads row 0.

    Args:
        ctx: Lowering context; its state holds the tokens.
        table: [vocabulary, hidden], in any format except column-major unquantized values.
        x: Result [rows, hidden].
        scale: Factor on every value (Gemma: the square root of the hidden size).
        cleared: Memory to clear beside, for a later phase of a pass of one row; None for none.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The table is column-major and unquantized, the kernel does not support a size,
            or a buffer is too small.
    """
    name = f"dequant embed.{table.dtype.name.lower()} {table.n}x{table.k}, {ctx.max_rows} rows"
    tuning_key = ctx.workgroup_key(name, THREADS, CANDIDATES)
    threads = tuning_key.used.workgroup
    beside = {} if cleared is None else {"cleared": cleared}
    phases = []
    for fields, buffers in bound_parts(ctx, table, x, label):
        record = EmbedRecord(
            threads=threads,
            rows=table.n,
            scale=scale,
            clears=cleared is not None,
            cleared_words=None if cleared is None else cleared.size // 4,
            **fields,
        )
        work = Work(-(-record.units // threads), 1)
        phases.append(Phase(record, buffers | beside, work, label, (tuning_key,)))
    return phases
