"""How a product with one token row and blocks along N is divided, and the memory that it needs.

The outputs of a tile share the scales of their inputs in groups, and the input is staged once for
each group, multiplied by its scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdrr_device.tuning import TuningKey

from rdrr_runtime.phases.context import Grid, OpContext
from rdrr_runtime.phases.products.down import most_rows, staged_values, workgroup_bytes
from rdrr_runtime.phases.products.matvec_tuning import (
    MANY_OUTPUTS,
    MAX_WORKGROUPS,
    SOFTWARE,
    WORKGROUP,
    Division,
    MatvecTuning,
    crossed_division,
    default_tuning,
    staged,
)
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

CANDIDATES = (
    *(MatvecTuning(groups=groups) for groups in (132, 264, 528, 1056, 2112)),
    MatvecTuning(WORKGROUP // 2, groups=1056),
)
"""The number of teams follows from the size of a group."""

ENOUGH_TILES = 512
"""Tiles of 32 outputs of a matrix from which they beat twice as many tiles of 16."""

MAX_QUADS = 8
"""Most quads of inputs that a thread holds in registers."""

MAX_MINIMUMS = 3
"""Most sums of minimums of a tile; with the sum of squares they make a vector."""

MAX_SUMS = 4
"""Most outputs of a team at a time; gate and up count as two."""


@dataclass(frozen=True)
class ColumnShape:
    """A product with blocks along N.

    Attributes:
        weights: Its matrices, without a down projection.
        outputs: Outputs, or gated pairs.
        k: Inputs.
        int8: Whether the input is quantized to int8.
        gate: Whether the outputs are gated pairs.
        partials: Partial results of attention that are combined into the input.
        down: The down projection that multiplies the outputs in the same phase; None for none.
    """

    weights: tuple[GpuWeight, ...]
    outputs: int
    k: int
    int8: bool
    gate: bool = False
    partials: int = 0
    down: GpuWeight | None = None

    @property
    def group(self) -> int:
        """Outputs that share a scale."""
        return min(weight.form.group for weight in self.weights)

    @property
    def has_minimums(self) -> bool:
        """Whether some blocks have minimums."""
        return any(bool(weight.form.minimum) for weight in self.weights)

    @property
    def staged(self) -> int:
        """Most values that are staged for a group of outputs, those of gate and of up for a gate.

        A down projection in the same phase stages its own after that.
        """
        inputs = staged(self.k) * (2 if self.gate else 1)
        return inputs if self.down is None else max(inputs, staged(staged_values(self.down)))

    def workgroup_bytes(self, tile_groups: int = 1) -> int:
        """Return the bytes of workgroup memory for tiles of `tile_groups` groups."""
        values = self.staged * tile_groups // 16 * (20 if self.int8 else 64)
        after = 0 if self.down is None else workgroup_bytes(self.down)
        reductions = (16 + 16 + 8 + 4) * WORKGROUP
        return values + after + reductions + 8 * self.partials + 4


def column_tuning(ctx: OpContext, variant: str, shape: ColumnShape) -> TuningKey[MatvecTuning]:
    """Return the tuning key of a product, with the parameters to use.

    The workgroups of a head compute several tiles each, and stage the input anew for each tile.
    More and smaller workgroups can multiply while others wait for that at a barrier.
    """
    if shape.outputs > MANY_OUTPUTS:
        default = default_tuning(ctx, WORKGROUP // 2, 2 * MAX_WORKGROUPS)
    else:
        default = default_tuning(ctx, WORKGROUP)
    name = f"matmul matvec.{variant} {shape.outputs}x{shape.k}"
    return ctx.tuning_key(name, default, (SOFTWARE, *CANDIDATES))


def column_division(ctx: OpContext, tuning: MatvecTuning, shape: ColumnShape) -> Division:
    """Return how the outputs of a product are divided.

    Small tiles fill the device sooner; in large tiles more outputs share the staged input.
    """
    team = tuning.team
    if ctx.grid is not None:
        fitting = list(_fitting(ctx, ctx.grid, team, shape))
        if fitting:
            enough = (
                division for division in fitting if division.rows * ctx.grid.groups >= shape.outputs
            )
            return _crossed(next(enough, fitting[-1]), shape)
    rows = min(shape.group, most_rows(shape.down))
    teams = min(tuning.workgroup, ctx.max_threads) // team
    if rows == 32 and shape.outputs // 32 < ENOUGH_TILES and not shape.gate:
        rows = 16
    while rows // teams * (2 if shape.gate else 1) > MAX_SUMS:
        rows //= 2
    teams = min(teams, rows)
    return Division(teams * team, team, rows // teams)


def _crossed(division: Division, shape: ColumnShape) -> Division:
    """Return a division with crossed teams if the units of its matrices lie first."""
    weights = shape.weights
    if shape.gate or division.tile_groups > 1 or not all(w.form.units_first for w in weights):
        return division
    return crossed_division(division.threads, division.rows, weights[0].form.units(shape.k))


def _fitting(ctx: OpContext, grid: Grid, team: int, shape: ColumnShape) -> Iterator[Division]:
    """Yield the divisions that workgroups of a grid can compute, smaller tiles first.

    Their threads cannot work for another workgroup while they wait, so a tile should be as large as
    what a workgroup has to compute: that is staged at once, and its loads overlap.
    """
    per_team = 1
    while per_team * (2 if shape.gate else 1) <= MAX_SUMS:
        rows = grid.threads // team * per_team
        groups = -(-rows // shape.group)
        whole = groups == 1 or (rows % shape.group == 0 and per_team % groups == 0)
        summed = groups * (2 if shape.gate else 1) if shape.has_minimums else 0
        if (
            whole
            and summed <= MAX_MINIMUMS
            and shape.workgroup_bytes(groups) <= ctx.workgroup_storage
        ):
            yield Division(grid.threads, team, per_team, groups)
        per_team *= 2


def held_quads(ctx: OpContext, shape: ColumnShape, threads: int) -> int:
    """Return how many quads of inputs a thread holds for all tiles; 0 to load them for each tile.

    A workgroup of a grid has a processor for itself: nobody works there while it waits for inputs
    and scales, so it loads the inputs once, and the scales of all quads at the same time.
    """
    needed = -(-staged(shape.k) // (4 * threads))
    return needed if ctx.grid is not None and needed <= MAX_QUADS else 0
