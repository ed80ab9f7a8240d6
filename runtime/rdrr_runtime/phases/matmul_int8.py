"""Products of many token rows in int8: y[rows, N] = x[rows, K] W[N, K]^T, plus bias, plus y.

Only weights of the types in `TYPES` and `SCALED`, stored by row, and turned ones; x comes in int8
from `quantize_rows`. Single values and turned blocks are taken as 16 bits of their row's largest,
in two planes of int8, which rounds them by a hundredth of what x is rounded by. A workgroup
computes a tile of y; which tile suits depends on how many of them fill the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import Params
from rdrr_format.errors import DeviceError
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.packing import GpuWeight
from rdrr_runtime.phases.quantize_rows import Int8Rows
from rdrr_runtime.phases.row_scales import SCALED_TYPES
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.turn_blocks import shader_type, turned_constants

MIN_ROWS = 9
"""Token rows of a pass from which tiles beat reading each weight once a row."""


@dataclass(frozen=True)
class _Type:
    """How a weight type multiplies in int8.

    Attributes:
        group: Inputs to a scale.
        minimum: Whether a group has a minimum too.
        planes: Of int8 that make a weight. Two are for what is scaled by rows: single values, and
            blocks that lie across the inputs.
    """

    group: int
    minimum: bool = False
    planes: int = 1


TYPES: Mapping[str, _Type] = MappingProxyType(
    {
        "Q8_0": _Type(32),
        "Q4_0": _Type(32),
        "Q5_0": _Type(32),
        "Q5_1": _Type(32, minimum=True),
        "Q4_K": _Type(32, minimum=True),
        "Q5_K": _Type(32, minimum=True),
        "Q6_K": _Type(16),
    }
)
"""Blocks."""

SCALED: Mapping[str, _Type] = MappingProxyType(dict.fromkeys(SCALED_TYPES, _Type(32, planes=2)))
"""Single values, with the scales of their rows."""


TURNED = _Type(32, planes=2)
"""Turned blocks, with the scales of their rows."""


def scaling(weights: Iterable[GpuWeight]) -> str:
    """How the codes of some matrices are scaled, as shaders are told it."""
    kinds = (TYPES[one.dtype.name] for one in weights)
    return ",".join(f"{one.group}{' minimum' if one.minimum else ''}" for one in kinds)


@dataclass(frozen=True)
class Tile(Params):
    """What a workgroup computes: rows by outputs, `tm` by `tn` of them a thread.

    There are at least two threads a row: each stages one of a step's two scales of it.
    """

    rows: int
    outputs: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        """Threads of the workgroup."""
        return self.rows // self.tm * (self.outputs // self.tn)

    def storage(self, kind: _Type) -> int:
        """Bytes of workgroup memory: codes of 64 inputs, and their scales."""
        scale = 8 if kind.minimum else 4
        scales = 64 // kind.group * scale if kind.planes == 1 else 0
        return self.rows * (64 + 2 * scale) + self.outputs * (64 * kind.planes + scales)


LARGE = Tile(128, 64, 8, 4)
SMALL = Tile(64, 64, 8, 4)
FINE = Tile(64, 64, 4, 4)
NARROW = Tile(64, 32, 4, 4)
TINY = Tile(32, 64, 4, 4)
CANDIDATES = (LARGE, SMALL, FINE, NARROW, TINY, Tile(64, 128, 8, 8), Tile(32, 128, 4, 8))
ENOUGH_LARGE = 600  # large tiles that fill the largest GPUs several times over
ENOUGH_SMALL = 128  # small tiles that give each of their multiprocessors one


def suits(ctx: OpContext, weight: GpuWeight) -> bool:
    """Whether the kernel can compute a product in a pass of `ctx`."""
    # Turned blocks have no int8 kernel for fewer rows, other than one.
    return ctx.max_rows >= (2 if weight.turned else MIN_ROWS) and _kind(weight) is not None


def _kind(weight: GpuWeight) -> _Type | None:
    """How the kernel multiplies a matrix, or None."""
    if weight.turned:
        return None if weight.row_scales is None else TURNED
    if weight.layout is not Layout.ROW:
        return None
    return (TYPES if weight.row_scales is None else SCALED).get(weight.dtype.name)


def choose_tile(ctx: OpContext, kind: _Type, outputs: int) -> Tile:
    """The tile for a pass of `ctx.max_rows` rows.

    The large one unpacks each weight half as often, but 512 rows of matrices up to 8192 by 2048
    are no faster with it on an H200; tiles of 8 by 8 outputs a thread were slower there. The tiny
    one takes two thirds of the time where outputs are few (512 by 2048), and of a pass that fits it
    the others would multiply rows that are not there.

    With two planes, fewer outputs a thread and more threads instead are faster wherever tiles are
    few, and narrow tiles take a quarter less than tiny ones, even if most of their rows are not
    there.
    """
    if ctx.max_rows <= TINY.rows:
        few = kind.planes > 1 and _count(ctx, TINY, outputs) < ENOUGH_SMALL
        return NARROW if few else TINY
    if _fits(ctx, kind, LARGE) and _count(ctx, LARGE, outputs) >= ENOUGH_LARGE:
        return LARGE
    tiles = _count(ctx, SMALL, outputs)
    if kind.planes == 1:
        return SMALL if tiles >= ENOUGH_SMALL else TINY
    if tiles >= ENOUGH_LARGE:
        return SMALL
    return FINE if tiles >= ENOUGH_SMALL else NARROW


def _fits(ctx: OpContext, kind: _Type, tile: Tile) -> bool:
    """Whether the device can hold a tile."""
    return tile.storage(kind) <= ctx.workgroup_storage and tile.threads <= ctx.max_threads


def _count(ctx: OpContext, tile: Tile, outputs: int) -> int:
    """Workgroups of a launch."""
    return -(-ctx.max_rows // tile.rows) * -(-outputs // tile.outputs)


def matmul_int8(
    ctx: OpContext,
    weight: GpuWeight,
    x: Int8Rows,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    tile: Tile | None = None,
    label: str,
) -> list[Dispatch]:
    """One linear layer of many token rows.

    Args:
        ctx: Where it is lowered to.
        weight: [N, K] by row, of a type in `TYPES`; or with the scales of its rows, and of a type
            in `SCALED` or turned.
        x: int8 [rows, K].
        y: f32 [rows, N].
        bias: f32 [N].
        accumulate: Add to y instead of replacing it.
        tile: Instead of the tile that suits best.
        label: What the layer is.

    Raises:
        DeviceError: A weight that the kernel does not read, or a tile the device cannot hold.
        FormatError: A buffer is too small.
    """
    kind = _kind(weight)
    if kind is None or weight.k != x.k:
        raise DeviceError(
            "no int8 kernel reads this matrix",
            where=label,
            expected=f"{', '.join(TYPES)} (or scaled {', '.join(SCALED)}) by row, {x.k} inputs",
            found=f"{weight.dtype.name} by {weight.layout.value}, {weight.k} inputs",
        )
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    name = shader_type(weight)
    own = "" if weight.turned else "0"  # its matrix is read as by other kernels of turned blocks
    site = ctx.site(
        f"matmul matmul_int8.{name} {weight.n}x{weight.k}, {ctx.max_rows} rows",
        choose_tile(ctx, kind, weight.n),
        (one for one in CANDIDATES if _fits(ctx, kind, one)),
    )
    tile = tile or site.used
    made = []
    for part in weight.parts:
        what = kernel(
            "matmul_int8",
            variables={
                "WEIGHT": name,
                "BIAS": bias is not None,
                "GROUP": kind.group,
                "MINIMUM": kind.minimum,
                "PLANES": kind.planes,
                "TILE_M": tile.rows,
                "TILE_N": tile.outputs,
                "TM": tile.tm,
                "TN": tile.tn,
                "THREADS": tile.threads,
                "EXPERTS": "",
            },
            constants={
                "N": weight.n,
                "ROWS": x.rows,
                "STEPS": -(-weight.k // 64),
                f"ROW_WORDS{own}": weight.words_per_row,
                "PART": part.rows,
                "FIRST": part.first_row,
                "ACCUMULATE": accumulate,
                **(turned_constants(weight) if weight.turned else {}),
            },
            variant=name,
            trusted=True,
        )
        buffers = {
            "current": ctx.state.step,
            "x": x.q,
            "x_scales": x.scales,
            f"weight{own}": part.slice,
            "y": y,
        }
        if weight.row_scales is not None:
            buffers["row_scales"] = weight.row_scales
        if bias is not None:
            buffers["bias"] = bias
        grid = Grid(-(-part.rows // tile.outputs), 1, 1, 1, tile.rows)
        made.append(dispatch(what, buffers, grid, label, (site,)))
    return made
