"""Embedding: look up the table row of each token, dequantize it and scale it."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weights.binding import WeightsRecord, bind_parts
from rdrr_runtime.phases.weights.checks import half_units, need_rows
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


@dataclass(frozen=True)
class EmbedTuning(Params):
    """Tuning parameters of embed.

    Attributes:
        workgroup: Threads of a workgroup; each dequantizes 32 weights of a row.
    """

    workgroup: int = 32


@dataclass(frozen=True, kw_only=True)
class EmbedRecord(WeightsRecord):
    """Parameters of embed.wgsl.

    Attributes:
        k: Elements of a row.
        scale: Factor on every value.
        clears: Whether the phase also clears memory for a later one.
        cleared_words: Words that it clears.
    """

    shader = "rows/embed"
    general = True

    value: str = choice()
    k: int
    units: int
    outputs: int
    first: int
    rows: int
    scale: float
    clears: bool = choice(default=False)
    cleared_words: int | None = None

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return self.outputs == self.rows


CANDIDATES = tuple(EmbedTuning(threads) for threads in (8, 16, 32, 64, 128, 256))


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
    need_rows(table, label)
    need_multiple(f"{label}: hidden size", table.k, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * table.k)
    units = half_units(table.k)
    dtype = table.dtype.name.lower()
    tuning_key = ctx.tuning_key(
        f"dequant embed.{dtype} {table.n}x{table.k}, {ctx.max_rows} rows",
        EmbedTuning(),
        (candidate for candidate in CANDIDATES if candidate.workgroup <= ctx.max_threads),
    )
    beside = {} if cleared is None else {"cleared": cleared}
    phases = []
    for bound in bind_parts(table):
        part = bound.parts[0]
        record = EmbedRecord(
            threads=tuning_key.used.workgroup,
            variant=dtype,
            value=ctx.values,
            k=table.k,
            units=units,
            outputs=table.outputs(part),
            first=part.first_row,
            rows=table.n,
            scale=scale,
            clears=cleared is not None,
            cleared_words=None if cleared is None else cleared.size // 4,
            **bound.fields,
        )
        buffers = {"current": ctx.state.step, "x": x, **beside, **bound.buffers}
        work = Work(-(-units // tuning_key.used.workgroup), 1)
        phases.append(Phase(record, buffers, work, label, (tuning_key,)))
    return phases
