"""Embedding: the table's row of each token, dequantized and scaled."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params

from rdrr_runtime.phases.bound_weights import WeightsRecord, bind_parts
from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.weight_checks import half_units, need_rows


@dataclass(frozen=True)
class EmbedTuning(Params):
    """Threads that dequantize side by side.

    Attributes:
        workgroup: Each of them takes 32 weights of one row.
    """

    workgroup: int = 32


@dataclass(frozen=True, kw_only=True)
class EmbedRecord(WeightsRecord):
    """Parameters of embed.wgsl.

    Attributes:
        value: Type of activations.
        k: Elements of a row.
        units: Units of 32 weights in a row.
        outputs: Rows of the part of the table that is read.
        first: The first of them.
        scale: Factor on every value.
    """

    shader = "embed"

    value: str = choice()
    k: int
    units: int
    outputs: int
    first: int
    scale: float


CANDIDATES = tuple(EmbedTuning(threads) for threads in (8, 16, 32, 64, 128, 256))


def embed(
    ctx: OpContext, table: GpuWeight, x: BufferSlice, *, scale: float = 1.0, label: str
) -> list[Phase]:
    """x[r, :] = scale * table[t, :], t the token of row r.

    Args:
        ctx: Where it is lowered to; its state holds the tokens.
        table: [vocabulary, hidden], in any form but single values by column.
        x: [rows, hidden].
        scale: Factor on every value (Gemma: the root of the hidden size).
        label: What the op is.

    Raises:
        FormatError: A table in another layout, or sizes that do not suit.
    """
    need_rows(table, label)
    need_multiple(f"{label}: hidden size", table.k, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * table.k)
    units = half_units(table.k)
    dtype = table.dtype.name.lower()
    tuning_key = ctx.tuning_key(
        f"dequant embed.{dtype} {table.n}x{table.k}, {ctx.max_rows} rows",
        EmbedTuning(),
        (one for one in CANDIDATES if one.workgroup <= ctx.max_threads),
    )
    made = []
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
            scale=scale,
            **bound.fields,
        )
        buffers = {"current": ctx.state.step, "x": x, **bound.buffers}
        work = Work(-(-units // tuning_key.used.workgroup), 1)
        made.append(Phase(record, buffers, work, label, (tuning_key,)))
    return made
