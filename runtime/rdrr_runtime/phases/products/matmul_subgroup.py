"""Products of many token rows on matrices of subgroups: y[rows, N] = x[rows, K] W[N, K]^T (+ ...).

A subgroup multiplies whole matrices of f16 at once, with sums in f32, where a device has such an
operation (tensor cores). `half_rows` provides x in f16; weights are dequantized to f16 as they are
staged. The shapes come from the capabilities of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate as running_sums
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import MATRIX_FEATURE, MatrixShape
from rdrr_device.tuning import Params
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.half_rows import K_TILE, HalfRows
from rdrr_runtime.phases.products.quantize_rows import padded
from rdrr_runtime.phases.products.sum_splits import sum_splits
from rdrr_runtime.phases.weights.binding import (
    BoundWeights,
    WeightsRecord,
    bind_parts,
    bind_whole,
)
from rdrr_runtime.phases.weights.checks import readable
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MOST_MATRICES = 3
"""Most matrices that share a launch."""

MIN_ROWS = 8
"""Fewest token rows of a pass for which tiles pay."""

SOFTWARE_THREADS = 32
"""Threads that take the place of a subgroup where none multiplies matrices."""


@dataclass(frozen=True, kw_only=True)
class MatmulSubgroup(WeightsRecord):
    """Parameters of matmul_subgroup.wgsl.

    Attributes:
        tile_m: Rows of a tile.
        tile_n: Outputs of a tile.
        step: Inputs that are staged at a time, 32, 64, 128 or 256.
        teams_m: Subgroups that share the rows of a tile.
        teams_n: Subgroups that share the outputs of a tile.
        teams_k: Subgroups that share the inputs of a step.
        shape: Rows, outputs and inputs that a subgroup multiplies at once.
        size: Threads of a subgroup.
        matrices: Whether subgroups multiply matrices; else each thread multiplies elements.
        subgroups: Whether subgroup operations are used, which is the same.
        value: Type of the factors.
        splits: Items that share the inputs of a tile; `sum_splits` adds the sums of several.
        ahead: Steps that are loaded before they are needed, a divisor of the steps of a split.
        bias: Whether a bias is added.
        n: Outputs of a row of y, over all parts and matrices.
        first: Index of the first output of each matrix.
        outputs: Outputs of each matrix.
        accumulate: Add to y instead of replacing it.
        k_padded: Inputs, zero padding included.
        y_rows: With several splits: rows of y for each of them.
    """

    shader = "products/matmul_subgroup"
    trusted = True

    tile_m: int = choice()
    tile_n: int = choice()
    step: int = choice()
    teams_m: int = choice()
    teams_n: int = choice()
    teams_k: int = choice()
    shape: tuple[int, int, int] = choice()
    size: int = choice()
    matrices: bool = choice()
    subgroups: bool = choice()
    value: str = choice("f16")
    splits: int = choice(default=1)
    ahead: int = choice(default=1)
    bias: bool = choice(default=False)
    n: int
    first: tuple[int, ...]
    outputs: tuple[int, ...]
    accumulate: bool = False
    k_padded: int
    y_rows: int | None = None


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
        splits: Workgroups that share the inputs, each with a tile of sums to be added.
        ahead: Steps that are loaded before they are needed.
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

    def storage(self, shape: MatrixShape) -> int:
        """Return the bytes of workgroup memory."""
        staged = 2 * (self.rows + self.outputs) * (self.step + 8)
        staged += self.outputs * self.step // 4  # scales along the outputs
        return staged + 4 * self.teams * shape.m * shape.n


LARGE = SubgroupTile(128, 128, 64, 2, 2)
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


def refusal(ctx: OpContext, weights: Sequence[GpuWeight]) -> str | None:
    """Return why subgroups cannot multiply matrices in a pass of `ctx`, or None if they can."""
    if ctx.max_rows < MIN_ROWS:
        return f"products of subgroups need {MIN_ROWS} token rows, and the pass has {ctx.max_rows}"
    if matrix_shape(ctx) is None:
        return "the device states no shape of matrices in f16 with sums in f32"
    if ctx.values != "f32":
        return f"products of subgroups read activations in f32, and these are in {ctx.values}"
    if len(weights) > 1 and any(len(weight.parts) > 1 for weight in weights):
        return "a matrix in several parts shares no launch"
    if len(weights) > MOST_MATRICES:
        return f"{len(weights)} matrices share a launch, and at most {MOST_MATRICES} can"
    for weight in weights:
        if weight.form.values == "f32":
            return "weights in F32 are not rounded to f16"
        if not readable(weight):
            return f"its {weight.dtype} values are stored column-major"
    if not _fits(ctx, SMALL, weights):
        return "the smallest tile does not fit into a workgroup"
    return sizes_refusal(ctx)


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
    ctx: OpContext, weights: Sequence[GpuWeight], *, adds: bool = False
) -> SubgroupTile:
    """Return the default tile for a pass of `ctx.max_rows` rows.

    Measured on an H100 in passes of 512 rows of a 1B model: with fewer tiles than `ENOUGH` the
    small one is faster, and values of 16 bits are loaded faster by twice as many threads (10.5
    and 11.1 ms), blocks are not (10.1 and 10.0; along the outputs 11.6 and 11.4). Subgroups that
    share inputs are faster where few workgroups have many inputs: 128 rows, 2,048 outputs and
    8,192 inputs took 114 us in small tiles and 64 in narrow ones.
    """
    large = (SHARED if all(weight.form.values for weight in weights) else LARGE, SMALL)
    many = [tile for tile in large if _count(ctx, tile, weights) >= ENOUGH]
    fitting = (
        tile for tile in (*_few(ctx, weights, adds), *many, NARROW) if _fits(ctx, tile, weights)
    )
    return next(fitting, SMALL)


def _few(ctx: OpContext, weights: Sequence[GpuWeight], adds: bool) -> Sequence[SubgroupTile]:
    """Return the tiles for few rows, in order of preference.

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


def _fits(ctx: OpContext, tile: SubgroupTile, weights: Sequence[GpuWeight]) -> bool:
    """Return whether a tile divides matrices, and fits the device's memory and threads."""
    shape, threads = matrix_shape(ctx), tile.teams * subgroup_threads(ctx)
    assert shape is not None, "a refusal says that there is none"
    return (
        padded(weights[0].k, K_TILE) % (tile.step * tile.splits * tile.ahead) == 0
        and (tile.splits == 1 or sum(weight.n for weight in weights) % 4 == 0)
        and tile.storage(shape) <= ctx.workgroup_storage
        and threads <= ctx.max_threads
    )


def subgroup_threads(ctx: OpContext) -> int:
    """Return the threads of a subgroup, or those that take its place."""
    sizes = ctx.capabilities.subgroup_sizes
    return sizes[0] if multiplies(ctx) and sizes is not None else SOFTWARE_THREADS


def _record(
    ctx: OpContext,
    bound: BoundWeights,
    tile: SubgroupTile,
    n: int,
    bias: BufferSlice | None,
    adds: bool,
    k_padded: int,
) -> MatmulSubgroup:
    """Return the parameters of a launch; only one without splits adds a bias or to y."""
    matrices, size, shape = multiplies(ctx), subgroup_threads(ctx), matrix_shape(ctx)
    assert shape is not None, "the caller has checked it"
    pairs = list(zip(bound.weights, bound.parts, strict=True))
    begins = running_sums((weight.n for weight in bound.weights[:-1]), initial=0)
    return MatmulSubgroup(
        threads=tile.teams * size,
        variant=bound.types,
        shape=(shape.m, shape.n, shape.k),
        size=size,
        matrices=matrices,
        subgroups=matrices,
        bias=bias is not None,
        n=n,
        first=tuple(begin + part.first_row for begin, (_, part) in zip(begins, pairs, strict=True)),
        outputs=tuple(weight.outputs(part) for weight, part in pairs),
        accumulate=adds and tile.splits == 1,
        k_padded=k_padded,
        y_rows=ctx.max_rows if tile.splits > 1 else None,
        **tile.fields,
        **bound.fields,
    )


def matmul_subgroup(
    ctx: OpContext,
    weights: Sequence[GpuWeight],
    x: HalfRows,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    tile: SubgroupTile | None = None,
    room: Callable[[int], BufferSlice],
    label: str,
) -> list[Phase]:
    """Lower linear layers of many token rows, one phase for all of them or each part of one.

    A tile with several splits takes a further phase, which adds their sums.

    Args:
        ctx: Lowering context.
        weights: One to `MOST_MATRICES` matrices [N, K] of any type but F32, several in one part.
        x: f16 [rows, K].
        y: f32 [rows, N of all matrices].
        bias: f32, one for each output of all matrices.
        accumulate: Add to y instead of replacing it.
        tile: Tile to use instead of the tuned or default one.
        room: Returns a buffer of a given size in bytes, for the sums of splits.
        label: Name of the layer, for messages and profiles.

    Raises:
        DeviceError: The kernel cannot multiply the matrices, or their K differs from that of x.
        FormatError: A buffer is too small.
    """
    shape = matrix_shape(ctx)
    for weight in weights:
        if shape is None or weight.form.values == "f32" or weight.k != x.k:
            raise DeviceError(
                "no product of subgroups reads this matrix",
                where=label,
                expected=f"a shape of matrices, a type other than F32, and {x.k} inputs",
                found=f"{weight.dtype.name}, {weight.k} inputs",
            )
    n = sum(weight.n for weight in weights)
    need_floats(f"{label}: y", y, ctx.max_rows * n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, n)
    kinds = ",".join(f"{weight.dtype.name.lower()}.{weight.layout.value}" for weight in weights)
    tuning_key = ctx.tuning_key(
        f"matmul matmul_subgroup.{kinds} {n}x{x.k}, {ctx.max_rows} rows",
        choose_tile(ctx, weights, adds=accumulate),
        (candidate for candidate in CANDIDATES if _fits(ctx, candidate, weights)),
    )
    tile = tile or tuning_key.used
    shared = tile.splits > 1
    target = room(4 * tile.splits * ctx.max_rows * n) if shared else y
    phases = []
    for bound in bind_parts(weights[0]) if len(weights) == 1 else (bind_whole(weights),):
        record = _record(ctx, bound, tile, n, None if shared else bias, accumulate, x.k_padded)
        buffers = {"current": ctx.state.step, "x": x.y, "factors": x.factors, "y": target}
        buffers |= bound.buffers
        tiles = sum(-(-outputs // tile.outputs) for outputs in record.outputs)
        work = Work(tiles * tile.splits, tile.rows)
        if bias is not None and not shared:
            buffers["bias"] = bias
        phases.append(Phase(record, buffers, work, label, (tuning_key,)))
    if shared:
        phases += sum_splits(
            ctx,
            target,
            y,
            splits=tile.splits,
            n=n,
            bias=bias,
            accumulate=accumulate,
            label=label,
        )
    return phases
