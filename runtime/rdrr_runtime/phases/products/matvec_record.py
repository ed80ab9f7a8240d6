"""Parameters of the fused products with one token row and with a small batch of token rows."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_manifests.graph import Clamp

from rdrr_runtime.phases.phase import choice
from rdrr_runtime.phases.products.added_branch import BranchRecord
from rdrr_runtime.phases.products.fusion import InputRecord
from rdrr_runtime.phases.weights.binding import WeightsRecord


@dataclass(frozen=True)
class MatvecMatrix:
    """One of the matrices of a product.

    Attributes:
        n: Outputs of the matrix.
        tiles: Tiles that the matrix has of its own; 0 for an up matrix, which shares the tiles of
            its gate matrix, and for a down matrix.
        units: Units of a row that hold any of its inputs.
        trips: Iterations in which a team walks along a row, one unit for each thread.
        exact: Whether every thread of a team has a unit in every iteration.
    """

    n: int
    tiles: int
    units: int
    trips: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Matvec(WeightsRecord, InputRecord, BranchRecord):
    """Parameters of matvec.wgsl.

    Attributes:
        column: Whether the blocks of the matrices lie along N.
        output: Fused output op, see `Output.kind`.
        act: For `gate`, `down` and `activate`: the formula, see snippets/activate.wgsl.
        bias: Whether a bias is added.
        int8: Whether the input is quantized to int8.
        int8_out: Whether gated outputs are quantized to int8.
        pairs: For `down`: gated outputs of an item; 0 for others.
        at_once: For `down`: outputs that a thread computes at a time.
        scale_quads: Then with column-major matrices: quads of scales of the down projection that a
            thread loads before the products of gate and up.
        per_team: Outputs (or gated pairs) that a team computes at a time.
        summers: Threads that add up the sums of a team, if teams have any number of threads and may
            lie across subgroups; 0 if they have a power of two.
        crossed: Whether the threads of such a team are every `rows`-th one.
        tile_groups: Groups of outputs of a tile, each with scales of its own; 1 with rows.
        quads: With column-major matrices: quads of inputs that a thread holds for all tiles; 0 to
            load them anew for each tile, one after the other.
        held: With rows in int8: vectors of the input that a thread loads together.
        whole: Whether these are all that it stages.
        t: Threads of a team; the threads of a team share the sum of an output.
        k: Inputs.
        stride: Number of items; each computes every `stride`-th tile, or with `down` consecutive
            tiles.
        matrices: The matrices of the product.
        slot: For `down`: words of its results.
        staged: For `down` with column-major matrices: most values staged at a time.
        groups: Then also: groups of outputs that share scales, of the down projection.
        partials: For `combine`: partial results of all heads together.
        clamp: For `gate` and `down` with clamped SwiGLU: its constants.
        scored: Whether the sigmoid of a logit multiplies the products.
        score_at: Index of that logit.
        factors: Whether further values multiply activated outputs.
        factors_first: Index of the first of them.
    """

    shader = "products/matvec"
    trusted = True

    column: bool = choice()
    output: str = choice()
    act: str = choice()
    bias: bool = choice()
    int8: bool = choice()
    int8_out: bool = choice()
    kept_tiles: int | None = None
    pairs: int = choice(0)
    at_once: int = choice(0)
    scale_quads: int = choice(0)
    per_team: int = choice()
    summers: int = choice(0)
    crossed: bool = choice(default=False)
    tile_groups: int = choice(1)
    quads: int = choice(0)
    held: int = choice(1)
    whole: bool = choice(default=False)
    subgroups: bool = choice()
    value: str = choice()
    t: int
    k: int
    k_staged: int
    rows: int
    stride: int
    steps: int
    matrices: tuple[MatvecMatrix, ...]
    slot: int | None = None
    staged: int | None = None
    groups: int | None = None
    partials: int | None = None
    clamp: Clamp | None = None
    scored: bool = choice(default=False)
    score_at: int | None = None
    factors: bool = choice(default=False)
    factors_first: int | None = None

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return True


@dataclass(frozen=True)
class RowsMatrix:
    """One of the matrices of a product with a small batch.

    Attributes:
        n: Outputs of the matrix, or of the part of it that is bound; with experts, outputs of one
            expert.
        first: First item that computes outputs of this matrix.
        before: Outputs of other matrices, or of other parts, before its own; None with experts.
    """

    n: int
    first: int
    before: int | None = None


@dataclass(frozen=True, kw_only=True)
class MatvecRows(WeightsRecord):
    """Parameters of matvec_rows.wgsl.

    Attributes:
        experts: `each` for one result for each expert of a row, `sum` for the sum of the results
            weighted by routing weight; empty without experts.
        kind: Fused output op, `store`, `add` or `gate`, or with experts `activate`, see
            `Output.kind`.
        act: For `gate` and `activate`: the formula, see snippets/activate.wgsl.
        bias: Whether a bias is added.
        concatenated: Whether the outputs of several matrices or parts lie side by side in one y.
        rows: Token rows of a team, a power of two; 1 with experts.
        loads: Vectors that a thread loads at once when it stages inputs.
        early: Whether what a result is added to is loaded before the products.
        norm: Whether inputs are normalised and quantized as they are staged; for one part.
        looped: Whether a workgroup computes several items.
        t: Threads of a team; the threads of a team share the sum of an output.
        lanes: Threads of a team that belong to one subgroup, where subgroups have as many.
        width: Gated pairs of an item that are quantized to int8; 0 for f32 output.
        halves: Whether each 16 inputs have a scale, instead of each 32; only for weights in groups
            of 32 without minimums.
        halves_out: The same for gated pairs in int8.
        stride: With `looped`: number of workgroups; each computes every `stride`-th item.
        matrices: The matrices of the product.
        y_stride: For `concatenated`: outputs of all matrices and parts.
        expert_count: With experts: number of experts in a stack.
        top_k: With experts: routes of a row.
        scaled: With experts: whether routing weights multiply the inputs of experts.
        clamp: For `gate` with clamped SwiGLU: its constants.
    """

    shader = "products/matvec_rows"
    trusted = True

    experts: str = choice("")
    kind: str = choice()
    act: str = choice()
    bias: bool = choice()
    concatenated: bool = choice(default=False)
    rows: int = choice()
    groups: int = choice(1)
    staged: int = choice(default=0)
    loads: int = choice(default=1)
    early: bool = choice(default=False)
    norm: bool = choice(default=False)
    looped: bool = choice(default=False)
    t: int = choice()
    lanes: int = choice()
    outputs: int = choice()
    ahead: bool = choice(default=False)
    width: int = choice(default=0)
    halves: bool = choice(default=False)
    halves_out: bool = choice(default=False)
    subgroups: bool = choice()
    units: int
    k: int | None = None
    eps: float | None = None
    offset: float | None = None
    part: int | None = None
    staged_vectors: int | None = None
    stride: int | None = None
    steps: int | None = None
    matrices: tuple[RowsMatrix, ...]
    y_stride: int | None = None
    expert_count: int | None = None
    top_k: int | None = None
    scaled: bool = choice(default=False)
    clamp: Clamp | None = None

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return self.staged > 0 and not self.experts
