"""Products of many token rows on matrices of subgroups: y[rows, N] = x[rows, K] W[N, K]^T (+ ...).

A subgroup multiplies whole matrices of f16 at once, with sums in f32, where a device has such an
operation (tensor cores). `half_rows` provides x in f16; weights are dequantized to f16 as they are
staged. The shapes come from the capabilities of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate as running_sums

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.half_rows import HalfRows
from rdrr_runtime.phases.products.matmul_subgroup_tuning import (
    CANDIDATES,
    SMALL,
    SubgroupTile,
    choose_tile,
    fits,
    matrix_shape,
    multiplies,
    sizes_refusal,
    subgroup_threads,
)
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

MOST_APART = 2
"""Most of them if each has a y of its own: more would bind more buffers than a device may allow."""

MIN_ROWS = 8
"""Fewest token rows of a pass for which tiles pay."""


@dataclass(frozen=True, kw_only=True)
class MatmulSubgroup(WeightsRecord):
    """Parameters of matmul_subgroup.wgsl.

    Attributes:
        shape: Rows, outputs and inputs that a subgroup multiplies at once.
        size: Threads of a subgroup.
        matrices: Whether subgroups multiply matrices; else each thread multiplies elements.
        subgroups: Whether subgroup operations are used, which is the same.
        value: Type of the factors.
        stored: Matrices beside each other of which a subgroup stores the sums at once, where
            weights were; 0 for single ones in memory of their own.
        apart: Whether each matrix has a y of its own.
        bias: Whether a bias is added.
        n: Outputs of a row, over all parts and matrices.
        first: Index of the first output of each matrix.
        outputs: Outputs of each matrix.
        accumulate: Add to y instead of replacing it.
        k_padded: Inputs, zero padding included.
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
    stored: int = choice(default=0)
    apart: bool = choice(default=False)
    bias: bool = choice(default=False)
    n: int
    first: tuple[int, ...]
    outputs: tuple[int, ...]
    accumulate: bool = False
    k_padded: int
    y_rows: int | None = None


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
    if not fits(ctx, SMALL, weights):
        return "the smallest tile does not fit into a workgroup"
    return sizes_refusal(ctx)


def _record(
    ctx: OpContext,
    bound: BoundWeights,
    tile: SubgroupTile,
    n: int,
    bias: BufferSlice | None,
    adds: bool,
    k_padded: int,
    *,
    apart: bool,
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
        stored=tile.stored(shape) if matrices else 0,
        apart=apart,
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
    ys: Sequence[BufferSlice],
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
        ys: f32 [rows, N of all matrices], or [rows, N] for each of up to `MOST_APART` matrices.
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
    apart = len(ys) > 1
    for y, width in zip(ys, [weight.n for weight in weights] if apart else [n], strict=True):
        need_floats(f"{label}: y", y, ctx.max_rows * width)
    if bias is not None:
        need_floats(f"{label}: bias", bias, n)
    kinds = ",".join(f"{weight.dtype.name.lower()}.{weight.layout.value}" for weight in weights)
    tuning_key = ctx.tuning_key(
        f"matmul matmul_subgroup.{kinds} {n}x{x.k}, {ctx.max_rows} rows",
        choose_tile(ctx, weights, adds=accumulate, apart=apart),
        (tile for tile in CANDIDATES if fits(ctx, tile, weights, apart=apart)),
    )
    tile = tile or tuning_key.used
    shared = tile.splits > 1
    targets = [room(4 * tile.splits * ctx.max_rows * n)] if shared else ys
    phases = []
    for bound in bind_parts(weights[0]) if len(weights) == 1 else (bind_whole(weights),):
        added = None if shared else bias
        record = _record(ctx, bound, tile, n, added, accumulate, x.k_padded, apart=apart)
        buffers = {"current": ctx.state.step, "x": x.y, "factors": x.factors}
        buffers |= {f"y{at if apart else ''}": y for at, y in enumerate(targets)}
        buffers |= bound.buffers
        tiles = sum(-(-outputs // tile.outputs) for outputs in record.outputs)
        work = Work(tiles * tile.splits, tile.rows)
        if bias is not None and not shared:
            buffers["bias"] = bias
        phases.append(Phase(record, buffers, work, label, (tuning_key,)))
    if shared:
        phases += sum_splits(
            ctx,
            *targets,
            *ys,
            splits=tile.splits,
            n=n,
            bias=bias,
            accumulate=accumulate,
            label=label,
        )
    return phases
