"""Parameters of the products that take one matrix, or one for each expert, and fold nothing in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_runtime.phases.bound_weights import BoundWeights, WeightsRecord
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import choice
from rdrr_runtime.phases.weight_checks import half_units


@dataclass(frozen=True, kw_only=True)
class LinearRecord(WeightsRecord):
    """What all of them have.

    Attributes:
        experts: How experts are found; empty for a single matrix. The shader says which there are.
        bias: Whether a bias is added.
        n: Outputs of all parts; of one expert, where there are experts.
        first: The first row of the part that is read.
        outputs: Its rows.
        accumulate: Add to y instead of replacing it.
        top_k: Routes of a row, where there are experts.
        max_rows: Most token rows of a pass, where the routes of each expert are tiled.
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
    """What those in floating point have.

    Attributes:
        value: Type of x.
        y: Type of y.
        k: Inputs.
        units: Units of 32 weights in a row.
        expert_rows: Rows from one expert to the next, where there are experts.
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
        subgroups: Whether sums go through subgroup operations.
        k_padded: Whether some units reach beyond K.
        expert_count: Experts in the matrix, where there are several.
    """

    shader = "gemv_row"

    rows: int = choice()
    subgroups: bool = choice()
    k_padded: bool
    expert_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class MatmulTiled(FloatRecord):
    """Parameters of matmul_tiled.wgsl.

    Attributes:
        micro: An eighth of a tile's rows, 4 or 8.
        tile_n: Outputs of a tile, 64 or 128.
        single_row: x and y have one row, whatever the pass has.
    """

    shader = "matmul_tiled"
    trusted = True

    threads: int = 128
    micro: int = choice()
    tile_n: int = choice()
    single_row: bool = choice(default=False)


@dataclass(frozen=True, kw_only=True)
class MatmulInt8(LinearRecord):
    """Parameters of matmul_int8.wgsl.

    Attributes:
        tile_m: Rows of a tile.
        tile_n: Its outputs.
        tm: Rows of a thread.
        tn: Its outputs.
        rows: Rows that the buffers of x hold.
        steps: Steps of 64 inputs.
    """

    shader = "matmul_int8"
    trusted = True

    tile_m: int = choice()
    tile_n: int = choice()
    tm: int = choice()
    tn: int = choice()
    rows: int
    steps: int


def float_fields(ctx: OpContext, bound: BoundWeights) -> dict[str, Any]:
    """Return the fields of `FloatRecord` that follow from the matrix and the context."""
    k = bound.weights[0].k
    return {
        **bound.fields,
        "first": bound.parts[0].first_row,
        "value": ctx.values,
        "y": ctx.values,
        "k": k,
        "units": half_units(k),
    }
