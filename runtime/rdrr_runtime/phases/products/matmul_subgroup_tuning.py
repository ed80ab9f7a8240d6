"""Tiles of products on matrices of subgroups: what fits a device, and which one a product takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rdrr_device.capabilities import MATRIX_FEATURE, MatrixShape
from rdrr_device.tuning import Params

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.products.half_rows import K_TILE
from rdrr_runtime.phases.products.quantize_rows import padded
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

SOFTWARE_THREADS = 32
"""Threads that take the place of a subgroup where none multiplies matrices."""


@dataclass(frozen=True)
class SubgroupTile(Params):
    """The tile of y that a workgroup computes.

    Attributes:
        rows: Token rows of the tile.
        outputs: Outputs of the tile.
        step: Inputs that are staged at a time, 32, 64, 128 or 256.
        teams_m: Subgroups that share the rows.
        teams_n: Subgroups that share the outputs.
        teams_k: Subgroups that share the inputs of a step: 1, 2, 4 or 8.
        splits: Workgroups that share the inputs, each with a tile of sums, which `sum_splits` adds.
        ahead: Steps that are loaded before they are needed, a divisor of the steps of a split.
    """

    rows: int
    outputs: int
    step: int
    teams_m: int
    teams_n: int
    teams_k: int = 1
    splits: int = 1
    ahead: int = 1

    @property
    def teams(self) -> int:
        """Subgroups of a workgroup."""
        return self.teams_m * self.teams_n * self.teams_k

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `MatmulSubgroup` that describe the tile."""
        return {
            "tile_m": self.rows,
            "tile_n": self.outputs,
            "step": self.step,
            "teams_m": self.teams_m,
            "teams_n": self.teams_n,
            "teams_k": self.teams_k,
            "splits": self.splits,
            "ahead": self.ahead,
        }

    def stored(self, shape: MatrixShape) -> int:
        """Return the matrices of sums that a subgroup has room for where weights were staged."""
        row = self.outputs // self.teams_n // shape.n
        size, room = 4 * self.teams * shape.m * shape.n, self._halves(self.outputs)
        fit = (count for count in range(1, row + 1) if row % count == 0 and count * size <= room)
        return max(fit, default=0)

    def storage(self, shape: MatrixShape, *, matrices: bool) -> int:
        """Return the bytes of workgroup memory.

        Without matrices the sums have memory of their own.
        """
        staged = self._halves(self.rows + self.outputs)
        staged += self.outputs * self.step // 4  # scales along the outputs
        alone = not (matrices and self.stored(shape))
        return staged + (4 * self.teams * shape.m * shape.n if alone else 0)

    def _halves(self, rows: int) -> int:
        """Return the bytes of staged rows or outputs."""
        return 2 * rows * (self.step + 8)


LARGE = SubgroupTile(128, 128, 64, 2, 2)
PAIRED = SubgroupTile(128, 128, 32, 2, 2)
SHARED = SubgroupTile(128, 128, 64, 2, 4)
SMALL = SubgroupTile(64, 64, 64, 2, 2)
NARROW = SubgroupTile(64, 32, 128, 2, 1, 4)
FEW_ROWS = tuple(
    SubgroupTile(rows, 32, 128, 1, 1, 4, splits, ahead)
    for rows in (16, 32)
    for splits in (1, 4)
    for ahead in (2, 1)
)
FEW_COLUMNS = (
    SubgroupTile(16, 64, 64, 1, 2, 2),
    SubgroupTile(16, 32, 64, 1, 1, 2, 8),
    SubgroupTile(32, 64, 64, 1, 2, 2),
    SubgroupTile(32, 32, 64, 1, 1, 2, 8),
)
CANDIDATES = (
    *FEW_ROWS,
    *FEW_COLUMNS,
    *(SubgroupTile(rows, 32, 256, 1, 1, 8, splits) for rows in (16, 32) for splits in (1, 4)),
    *(SubgroupTile(rows, 64, 64, 1, 2, 2, ahead=2) for rows in (16, 32)),
    *(SubgroupTile(rows, 64, 128, 1, 2, 4, splits=4, ahead=2) for rows in (16, 32)),
    NARROW,
    PAIRED,
    LARGE,
    SHARED,
    SMALL,
    SubgroupTile(128, 256, 32, 2, 4),
    SubgroupTile(128, 64, 64, 2, 2),
)
FEW_INPUTS = 4096
"""Inputs up to which sharing the inputs of row-major matrices takes longer than it saves, if a
phase has to add the sums."""

ENOUGH = 120
"""Tiles that occupy most multiprocessors of the largest GPUs."""

ENOUGH_PAIRS = 240
"""Tiles of which each of these multiprocessors has two, which is when short steps pay: they leave
memory for both. 512 rows of Q4_K on an H200: 14,336 outputs of 4,096 inputs (448 tiles) take 300 us
in steps of 32 and 347 of 64, but 4,096 outputs of 14,336 inputs (128 tiles) 349 and 273."""


def matrix_shape(ctx: OpContext) -> MatrixShape | None:
    """Return the largest shape with factors in f16 and sums in f32; None if there is none.

    Its sides divide those of each subgroup's part of a tile, which are multiples of 32.
    """
    shapes = (
        shape
        for shape in ctx.capabilities.matrices
        if (shape.inputs, shape.sums) == ("f16", "f32")
        and all(32 % side == 0 for side in (shape.m, shape.n, shape.k))
    )
    return max(shapes, key=lambda shape: shape.m * shape.n * shape.k, default=None)


def sizes_refusal(ctx: OpContext) -> str | None:
    """Return why the subgroups of a device cannot share a tile, or None if they can."""
    sizes = ctx.capabilities.subgroup_sizes
    if multiplies(ctx) and (sizes is None or sizes[0] != sizes[1] or sizes[0] % 32):
        return "the subgroups of the device are not all of one size, a multiple of 32"
    return None


def multiplies(ctx: OpContext) -> bool:
    """Return whether subgroups multiply matrices; else each thread multiplies elements."""
    return MATRIX_FEATURE in ctx.capabilities.features


def choose_tile(
    ctx: OpContext, weights: Sequence[GpuWeight], *, adds: bool = False, apart: bool = False
) -> SubgroupTile:
    """Return the default tile for a pass of `ctx.max_rows` rows; without splits if y is `apart`.

    Measured on an H100 in passes of 512 rows of a 1B model: with fewer tiles than `ENOUGH` the
    small one is faster, and values of 16 bits are loaded faster by twice as many threads (10.5
    and 11.1 ms), blocks are not (10.1 and 10.0; along the outputs 11.6 and 11.4). Subgroups that
    share inputs are faster where few workgroups have many inputs: 128 rows, 2,048 outputs and
    8,192 inputs took 114 us in small tiles and 64 in narrow ones.
    """
    large = SHARED if all(weight.form.values for weight in weights) else LARGE
    many = [tile for tile in (large, SMALL) if _count(ctx, tile, weights) >= ENOUGH]
    is_block = not any(weight.form.values or weight.form.column for weight in weights)
    if is_block and _count(ctx, PAIRED, weights) >= ENOUGH_PAIRS:
        many.insert(0, PAIRED)
    fitting = (
        tile
        for tile in (*_few(ctx, weights, adds), *many, NARROW)
        if fits(ctx, tile, weights, apart=apart)
    )
    return next(fitting, SMALL)


def _few(ctx: OpContext, weights: Sequence[GpuWeight], adds: bool) -> Sequence[SubgroupTile]:
    """Return the tiles for up to 32 rows, in order of preference.

    Workgroups share inputs where outputs alone give too few of them: columns of 32 rows, 2,048
    outputs and 8,192 inputs took 62 us in one split and 29 in 8. Rows are loaded two steps ahead:
    a step of 32 sequences of llama-1b took 1.88 ms on an H200, and 2.25 one step of 256 inputs
    ahead. Columns have as many scales as a step has inputs, so shorter steps suit them, and they
    are slower if loaded further ahead. Splits that are added to the residual stream take no phase
    of their own, since the norm after it adds them.
    """
    column = all(weight.form.column for weight in weights)
    tiles = [tile for tile in (FEW_COLUMNS if column else FEW_ROWS) if ctx.max_rows <= tile.rows]
    alone = next((_count(ctx, tile, weights) for tile in tiles), 0)
    shared = (column or adds or weights[0].k > FEW_INPUTS) and alone < ENOUGH
    return sorted(tiles, key=lambda tile: tile.splits, reverse=shared)


def _count(ctx: OpContext, tile: SubgroupTile, weights: Sequence[GpuWeight]) -> int:
    """Return the tiles of a launch."""
    return -(-ctx.max_rows // tile.rows) * sum(-(-weight.n // tile.outputs) for weight in weights)


def fits(
    ctx: OpContext, tile: SubgroupTile, weights: Sequence[GpuWeight], *, apart: bool = False
) -> bool:
    """Return whether a tile divides matrices, and fits the device's memory and threads."""
    shape, threads = matrix_shape(ctx), tile.teams * subgroup_threads(ctx)
    assert shape is not None, "a refusal says that there is none"
    return (
        padded(weights[0].k, K_TILE) % (tile.step * tile.splits * tile.ahead) == 0
        and (tile.splits == 1 or (not apart and sum(weight.n for weight in weights) % 4 == 0))
        and tile.storage(shape, matrices=multiplies(ctx)) <= ctx.workgroup_storage
        and threads <= ctx.max_threads
    )


def subgroup_threads(ctx: OpContext) -> int:
    """Return the threads of a subgroup, or those that take its place."""
    sizes = ctx.capabilities.subgroup_sizes
    return sizes[0] if multiplies(ctx) and sizes is not None else SOFTWARE_THREADS
