"""Parameters of the products with one token row, and with a small batch of them."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_runtime.phases.bound_weights import WeightsRecord
from rdrr_runtime.phases.fusion import InputRecord
from rdrr_runtime.phases.phase import choice


@dataclass(frozen=True)
class MatvecMatrix:
    """One of the matrices of a product.

    Attributes:
        n: Its rows.
        tiles: Tiles of outputs that are its own; 0 for the up matrix beside a gate matrix.
        units: Units of a row that hold any of its inputs.
        trips: Trips of a team along a row.
        exact: Whether all threads of a team have a unit in every trip.
    """

    n: int
    tiles: int
    units: int
    trips: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Matvec(WeightsRecord, InputRecord):
    """Parameters of matvec.wgsl.

    Attributes:
        column: Whether their blocks lie along N.
        output: `store`, `add`, `gate` or `best`.
        act: `silu` or `gelu_tanh`, for `gate`.
        bias: Whether a bias is added.
        int8: Whether the input is rounded to int8.
        int8_out: Whether gated outputs are.
        per_team: Outputs of a team at a time, or gated pairs.
        subgroups: Whether sums go through subgroup operations.
        value: Type of activations.
        t: Threads of a team, which shares an output.
        k: Inputs.
        k_staged: The same in whole units.
        rows: Outputs of a tile.
        stride: Items; each takes every `stride`-th tile.
        steps: Tiles of each item.
        matrices: What is multiplied.
        partials: Partial results of all heads, for `combine`.
    """

    shader = "matvec"
    trusted = True

    column: bool = choice()
    output: str = choice()
    act: str = choice()
    bias: bool = choice()
    int8: bool = choice()
    int8_out: bool = choice()
    per_team: int = choice()
    subgroups: bool = choice()
    value: str = choice()
    t: int
    k: int
    k_staged: int
    rows: int
    stride: int
    steps: int
    matrices: tuple[MatvecMatrix, ...]
    partials: int | None = None


@dataclass(frozen=True)
class RowsMatrix:
    """One of the matrices of a product with a small batch.

    Attributes:
        n: Its rows, of one expert where there are several.
        first: The item that begins with its outputs.
    """

    n: int
    first: int


@dataclass(frozen=True, kw_only=True)
class MatvecRows(WeightsRecord):
    """Parameters of matvec_rows.wgsl.

    Attributes:
        experts: `each` for a product with each expert of a row, `sum` for their sum by routing
            weight; empty where all rows have the same matrices.
        kind: `store`, `add` or `gate`.
        act: `silu` or `gelu_tanh`, for `gate`.
        bias: Whether a bias is added.
        joined: Whether the outputs of several matrices lie side by side in one y.
        rows: Token rows of an item, a power of two; 1 with experts.
        staged: Whether their inputs are staged in workgroup memory.
        t: Threads of a team, which shares an output's inputs.
        outputs: Outputs of a team at a time; gate and up count as two.
        ahead: Whether the next weights are loaded before these are multiplied.
        width: Gated pairs of an item that are left in int8; 0 where none are.
        subgroups: Whether sums go through subgroup operations.
        units: Units of 64 inputs, zeros after K included.
        matrices: What is multiplied.
        expert_count: Experts in a matrix.
        top_k: Routes of a row.
    """

    shader = "matvec_rows"
    trusted = True

    experts: str = choice("")
    kind: str = choice()
    act: str = choice()
    bias: bool = choice()
    joined: bool = choice(default=False)
    rows: int = choice()
    staged: bool = choice(default=False)
    t: int = choice()
    outputs: int = choice()
    ahead: bool = choice(default=False)
    width: int = choice(default=0)
    subgroups: bool = choice()
    units: int
    matrices: tuple[RowsMatrix, ...]
    expert_count: int | None = None
    top_k: int | None = None
