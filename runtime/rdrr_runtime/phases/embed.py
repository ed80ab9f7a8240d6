"""Embedding: the table's row of each token, dequantized and scaled."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import Params

from rdrr_runtime.phases.context import OpContext, need_multiple
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import halves_of, need_rows


@dataclass(frozen=True)
class EmbedTuning(Params):
    """Threads that dequantize side by side.

    Attributes:
        workgroup: Each of them takes 32 weights of one row.
    """

    workgroup: int = 32


CANDIDATES = tuple(EmbedTuning(threads) for threads in (8, 16, 32, 64, 128, 256))


def embed(
    ctx: OpContext, table: GpuWeight, x: BufferSlice, *, scale: float = 1.0, label: str
) -> list[Dispatch]:
    """x[r, :] = scale * table[tokens[r], :].

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
    units = halves_of(table.k)
    dtype = table.dtype.name.lower()
    site = ctx.site(
        f"dequant embed.{dtype} {table.n}x{table.k}, {ctx.max_rows} rows",
        EmbedTuning(),
        (one for one in CANDIDATES if one.workgroup <= ctx.max_threads),
    )
    return [
        dispatch(
            kernel(
                "embed",
                variables={"FORMATS": (table.form,), "VALUE": ctx.values},
                constants={
                    "WG": site.used.workgroup,
                    "K": table.k,
                    "UNITS": units,
                    "OUTPUTS": table.outputs(part),
                    "FIRST": part.first_row,
                    "SCALE": scale,
                    **table.places(part, 0),
                },
                variant=dtype,
            ),
            {
                "current": ctx.state.step,
                "tokens": ctx.state.tokens,
                "weight0": part.slice,
                "x": x,
            },
            Grid(-(-units // site.used.workgroup), 1, 1, 1),
            label,
            (site,),
        )
        for part in table.parts
    ]
