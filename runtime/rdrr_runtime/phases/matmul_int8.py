"""Products of many token rows in int8: y[rows, N] = x[rows, K] W[N, K]^T, plus bias, plus y.

Weights are blocks, or single values of 16 bits; x comes in int8 from `quantize_rows`. Single values
and blocks along N are taken as 16 bits of their row's largest, split into two planes of int8, which
rounds them by a hundredth of what x is rounded by. A workgroup computes a tile of y; which tile
suits depends on how many of them fill the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.bound_weights import bind_parts
from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.formats import FORMATS, GpuFormat
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.linear_records import MatmulInt8
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.quantize_rows import QuantizedRows
from rdrr_runtime.phases.row_scales import SCALED_TYPES
from rdrr_runtime.phases.weight_checks import readable

MIN_ROWS = 9
"""Token rows of a pass from which tiles beat reading each weight once a row."""


TYPES = tuple(name for name, form in FORMATS.items() if not form.values)
"""Blocks, which along N need the scales of their rows."""


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

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of the tile in `MatmulInt8`."""
        return {
            "threads": self.threads,
            "tile_m": self.rows,
            "tile_n": self.outputs,
            "tm": self.tm,
            "tn": self.tn,
        }

    def storage(self, form: GpuFormat) -> int:
        """Bytes of workgroup memory: codes of 64 inputs, and their scales."""
        if planes(form) == 2:
            return self.rows * (64 + 8) + self.outputs * 128
        scale = 4 * form.factors
        return self.rows * (64 + 2 * scale) + self.outputs * (64 + 64 // form.group * scale)


def steps_of(k: int) -> int:
    """Steps of 64 inputs in which a tile takes `k` of them."""
    return -(-k // 64)


def planes(form: GpuFormat) -> int:
    """PlaneOffsets of int8 that make a weight; two where each row has a scale."""
    return 2 if form.values or form.column else 1


LARGE = Tile(128, 64, 8, 4)
SMALL = Tile(64, 64, 8, 4)
FINE = Tile(64, 64, 4, 4)
NARROW = Tile(64, 32, 4, 4)
TINY = Tile(32, 64, 4, 4)
CANDIDATES = (LARGE, SMALL, FINE, NARROW, TINY, Tile(64, 128, 8, 8), Tile(32, 128, 4, 8))
ENOUGH_LARGE = 600  # large tiles that fill the largest GPUs several times over
ENOUGH_SMALL = 128  # small tiles that give each of their multiprocessors one


def refusal(ctx: OpContext, weight: GpuWeight) -> str | None:
    """Return why no such product can be computed in a pass of `ctx`; None if one can."""
    # Blocks along N have no other int8 kernel for a small batch.
    least = 2 if weight.by_column else MIN_ROWS
    if ctx.max_rows < least:
        return f"tiles begin at {least} token rows, and the pass has {ctx.max_rows}"
    return _unreadable_reason(weight)


def _unreadable_reason(weight: GpuWeight) -> str | None:
    """Return why a matrix cannot be multiplied; None if it can."""
    if not readable(weight):
        return f"its {weight.dtype} values are stored by column"
    if planes(weight.form) == 1:
        return None
    if weight.dtype.name not in (*TYPES, *SCALED_TYPES):
        return f"no int8 tiles read {weight.dtype}"
    return None if weight.row_scales is not None else "the rows of its matrix have no scales"


def choose_tile(ctx: OpContext, form: GpuFormat, outputs: int) -> Tile:
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
        few = planes(form) > 1 and _count(ctx, TINY, outputs) < ENOUGH_SMALL
        return NARROW if few else TINY
    if _fits(ctx, form, LARGE) and _count(ctx, LARGE, outputs) >= ENOUGH_LARGE:
        return LARGE
    tiles = _count(ctx, SMALL, outputs)
    if planes(form) == 1:
        return SMALL if tiles >= ENOUGH_SMALL else TINY
    if tiles >= ENOUGH_LARGE:
        return SMALL
    return FINE if tiles >= ENOUGH_SMALL else NARROW


def _fits(ctx: OpContext, form: GpuFormat, tile: Tile) -> bool:
    """Whether the device can hold a tile."""
    return tile.storage(form) <= ctx.workgroup_storage and tile.threads <= ctx.max_threads


def _count(ctx: OpContext, tile: Tile, outputs: int) -> int:
    """Workgroups of a launch."""
    return -(-ctx.max_rows // tile.rows) * -(-outputs // tile.outputs)


def matmul_int8(
    ctx: OpContext,
    weight: GpuWeight,
    x: QuantizedRows,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    tile: Tile | None = None,
    label: str,
) -> list[Phase]:
    """One linear layer of many token rows.

    Args:
        ctx: Where it is lowered to.
        weight: [N, K] of blocks along K; or with the scales of its rows, blocks along N or single
            values of 16 bits.
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
    form = weight.form
    if _unreadable_reason(weight) is not None or weight.k != x.k:
        raise DeviceError(
            "no int8 kernel reads this matrix",
            where=label,
            expected=f"blocks by row, or row scales, {x.k} inputs",
            found=f"{weight.dtype.name} by {weight.layout.value}, {weight.k} inputs",
        )
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    name = f"{weight.dtype.name.lower()}{'.column' if weight.by_column else ''}"
    tuning_key = ctx.tuning_key(
        f"matmul matmul_int8.{name} {weight.n}x{weight.k}, {ctx.max_rows} rows",
        choose_tile(ctx, form, weight.n),
        (one for one in CANDIDATES if _fits(ctx, form, one)),
    )
    tile = tile or tuning_key.used
    operands = {"x": x.q, "x_scales": x.scales, "row_scales": weight.row_scales, "bias": bias}
    buffers = {key: one for key, one in operands.items() if one is not None}
    made = []
    for bound in bind_parts(weight):
        part = bound.parts[0]
        record = MatmulInt8(
            variant=name,
            bias=bias is not None,
            n=weight.n,
            first=part.first_row,
            outputs=weight.outputs(part),
            accumulate=accumulate,
            rows=x.rows,
            steps=steps_of(weight.k),
            **tile.fields,
            **bound.fields,
        )
        read = {"current": ctx.state.step, "y": y, **buffers, **bound.buffers}
        work = Work(-(-record.outputs // tile.outputs), tile.rows)
        made.append(Phase(record, read, work, label, (tuning_key,)))
    return made
