"""Parameters of the unfused products, which take one matrix or a stack of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import choice
from rdrr_runtime.phases.weights.binding import BoundWeights, WeightsRecord
from rdrr_runtime.phases.weights.checks import half_units


@dataclass(frozen=True, kw_only=True)
class LinearRecord(WeightsRecord):
    """Parameters that all unfused products have.

    Attributes:
        experts: How the kernel finds its experts; the shader documents the values it supports.
            Empty for a single matrix.
        bias: Whether a bias is added.
        n: Outputs of the matrix, over all parts; with experts, outputs of one expert.
        first: Index of the part's first row in the matrix.
        outputs: Rows of the part.
        accumulate: Add to y instead of replacing it.
        top_k: With experts: routes of a row.
        max_rows: With tiles over the routes of each expert: most token rows of a pass.
    """

    experts: str = choice("")
    bias: bool = choice(default=False)
    n: int
    first: int
    outputs: int
    accumulate: bool = False
    top_k: int | None = None
    max_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class FloatRecord(LinearRecord):
    """Parameters of the products in floating point.

    Attributes:
        value: Type of x.
        y: Type of y.
        k: Inputs.
        units: Half units (32 weights) of a row.
        expert_rows: With experts: rows from one expert to the next in the stack.
    """

    value: str = choice()
    y: str = choice()
    k: int
    units: int
    expert_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class GemvRow(FloatRecord):
    """Parameters of gemv_row.wgsl.

    Attributes:
        rows: Token rows of an item, a power of two up to 8.
        k_padded: Whether the last half unit of a row reaches beyond K.
        expert_count: With experts: number of experts in the stack.
        scaled: With experts: whether routing weights have multiplied their inputs already.
    """

    shader = "products/gemv_row"
    general = True

    rows: int = choice()
    subgroups: bool = choice()
    k_padded: bool
    expert_count: int | None = None
    scaled: bool = choice(default=False)


@dataclass(frozen=True, kw_only=True)
class MatmulTiled(FloatRecord):
    """Parameters of matmul_tiled.wgsl.

    Attributes:
        micro: Token rows of a thread, 4 or 8, an eighth of the rows of a tile.
        tile_n: Outputs of a tile, 64 or 128.
        single_row: Whether x and y have one row, however many rows the pass has.
        skips: Whether threads without rows skip the products. A software adapter saves their time,
            a GPU, which runs them beside the others, takes up to a third longer (33 rows, F16).
    """

    shader = "products/matmul_tiled"
    trusted = True
    general = True

    threads: int = 128
    micro: int = choice()
    tile_n: int = choice()
    single_row: bool = choice(default=False)
    skips: bool = choice(default=False)


@dataclass(frozen=True, kw_only=True)
class MatmulInt8(LinearRecord):
    """Parameters of matmul_int8.wgsl.

    Attributes:
        halves: Whether each 16 inputs of x have a scale, instead of each 32; only for weights in
            groups of 32 without minimums.
        rows: Rows that the buffers of x hold, the stride of x.
    """

    shader = "products/matmul_int8"
    trusted = True

    tile_m: int = choice()
    tile_n: int = choice()
    tm: int = choice()
    tn: int = choice()
    teams: int = choice(default=1)
    halves: bool = choice(default=False)
    rows: int
    steps: int


def float_fields(ctx: OpContext, bound: BoundWeights) -> dict[str, Any]:
    """Return the field values of a `FloatRecord` that follow from the matrix and the context."""
    k = bound.weights[0].k
    return {
        **bound.fields,
        "first": bound.parts[0].first_row,
        "value": ctx.values,
        "y": ctx.values,
        "k": k,
        "units": half_units(k),
    }
