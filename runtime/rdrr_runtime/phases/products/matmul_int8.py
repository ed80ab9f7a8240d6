"""Tiled int8 products of many token rows: y[rows, N] = x[rows, K] W[N, K]^T (+ bias) (+ y).

The weights are blocks along K; `quantize_rows` provides x in int8. Other matrices are multiplied
after `requantize` has rounded them to such blocks. A workgroup computes a tile of y. The best tile
depends on how many of them it takes to fill the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params
from rdrr_format.errors import DeviceError

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.linear_records import MatmulInt8
from rdrr_runtime.phases.products.quantize_rows import QuantizedRows
from rdrr_runtime.phases.products.requantize import is_rounded
from rdrr_runtime.phases.weights.binding import bind_parts
from rdrr_runtime.phases.weights.checks import readable
from rdrr_runtime.phases.weights.formats import FORMATS, GpuFormat
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

MIN_ROWS = 9
"""Fewest token rows of a pass for which tiles beat reading each weight once for every row."""

TYPES = tuple(name for name, form in FORMATS.items() if not form.values)
"""Quantized types."""


@dataclass(frozen=True)
class Tile(Params):
    """The tile of y that a workgroup computes.

    A tile has at least two threads for each row, because each thread stages one of the two scales
    that a row has in a step.

    Attributes:
        rows: Token rows of the tile.
        outputs: Outputs of the tile.
        tm: Token rows of a thread.
        tn: Outputs of a thread, a multiple of 4.
        teams: Teams of threads that share the inputs of the tile: 1, 2 or 4.
    """

    rows: int
    outputs: int
    tm: int
    tn: int
    teams: int = 1

    @property
    def threads(self) -> int:
        """Threads of the workgroup."""
        return self.rows // self.tm * (self.outputs // self.tn) * self.teams

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of a `MatmulInt8` that describe the tile."""
        return {
            "threads": self.threads,
            "tile_m": self.rows,
            "tile_n": self.outputs,
            "tm": self.tm,
            "tn": self.tn,
            "teams": self.teams,
        }

    def storage(self, form: GpuFormat) -> int:
        """Return the bytes of workgroup memory: codes of 64 inputs of x and W, and their scales.

        Those of x may be halves, which have two scales for a group.
        """
        scale = 4 * form.factors
        row, output = 64 + 2 * 8, 64 + 64 // form.group * scale
        return self.teams * (self.rows * row + self.outputs * output)


def steps_of(k: int) -> int:
    """Return the number of steps of 64 inputs that cover `k` inputs."""
    return -(-k // 64)


LARGE = Tile(128, 64, 8, 4)
SMALL = Tile(64, 64, 8, 4)
TINY = Tile(32, 64, 4, 4)
CANDIDATES = (
    LARGE,
    SMALL,
    TINY,
    *(replace(tile, teams=2) for tile in (SMALL, TINY)),
    replace(TINY, teams=4),
    Tile(128, 128, 8, 8),
)
ENOUGH_LARGE = 600  # large tiles that fill the largest GPUs several times over
ENOUGH_SMALL = 128  # small tiles that occupy each of their multiprocessors once


def refusal(ctx: OpContext, weight: GpuWeight) -> str | None:
    """Return why tiles cannot compute the product in a pass of `ctx`, or None if they can.

    Matrices that `requantize` can round are served too.
    """
    if ctx.max_rows < MIN_ROWS:
        return f"tiles need {MIN_ROWS} token rows, and the pass has {ctx.max_rows}"
    if is_rounded(weight) or weight.dtype.name in TYPES:
        return None
    if not readable(weight):
        return f"its {weight.dtype} values are stored column-major"
    return f"no int8 tiles read {weight.dtype}"


def choose_tile(ctx: OpContext, form: GpuFormat, outputs: int) -> Tile:
    """Return the default tile for a pass of `ctx.max_rows` rows.

    Measured on an H200: the large tile unpacks each weight half as often, but is no faster for 512
    rows and matrices up to 8192 by 2048; tiles with 8 by 8 outputs for each thread were slower. If
    there are few outputs (512 by 2048), the tiny tile takes two thirds of the time, and a further
    third less with several teams. For a pass whose rows fit the tiny tile, the other tiles would
    multiply padding rows. A pass of up to two rows of small tiles often has only one: 64 tokens of
    an 8B model took 30.0 ms with small tiles for 4,096 outputs and 20.5 with tiny ones, and 128
    tokens 37.0 and 34.8.
    """
    if ctx.max_rows <= TINY.rows:
        return _in_teams(ctx, form, outputs)
    if _fits(ctx, form, LARGE) and _count(ctx, LARGE, outputs) >= ENOUGH_LARGE:
        return LARGE
    enough = ENOUGH_SMALL * (2 if SMALL.rows < ctx.max_rows <= 2 * SMALL.rows else 1)
    many = _count(ctx, SMALL, outputs) >= enough
    return SMALL if many else _in_teams(ctx, form, outputs)


def _in_teams(ctx: OpContext, form: GpuFormat, outputs: int) -> Tile:
    """Return the tiny tile with as many teams as occupy the device and fit a workgroup of it."""
    tiles = _count(ctx, TINY, outputs)
    wanted = (4, 2) if tiles <= ENOUGH_SMALL else (2,) if tiles <= 2 * ENOUGH_SMALL else ()
    several = (replace(TINY, teams=teams) for teams in wanted)
    return next((tile for tile in several if _fits(ctx, form, tile)), TINY)


def _fits(ctx: OpContext, form: GpuFormat, tile: Tile) -> bool:
    """Return whether a tile fits the device's workgroup memory and threads."""
    return tile.storage(form) <= ctx.workgroup_storage and tile.threads <= ctx.max_threads


def _count(ctx: OpContext, tile: Tile, outputs: int) -> int:
    """Return the number of workgroups of a launch."""
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
    """Lower a linear layer of many token rows, one phase for each part of the weight.

    Args:
        ctx: Lowering context.
        weight: [N, K] with blocks along K.
        x: int8 [rows, K].
        y: f32 [rows, N].
        bias: f32 [N].
        accumulate: Add to y instead of replacing it.
        tile: Tile to use instead of the tuned or default one.
        label: Name of the layer, for messages and profiles.

    Raises:
        DeviceError: The kernel cannot read the weight, or its K differs from that of x.
        FormatError: A buffer is too small.
    """
    form = weight.form
    if weight.by_column or form.values or weight.k != x.k:
        raise DeviceError(
            "no int8 kernel reads this matrix",
            where=label,
            expected=f"row-major blocks and {x.k} inputs",
            found=f"{weight.dtype.name} {weight.layout.value}-major, {weight.k} inputs",
        )
    need_floats(f"{label}: y", y, ctx.max_rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    name = weight.dtype.name.lower()
    assert not x.halves or (form.group == 32 and not form.minimum), "sums of codes are missing"
    tuning_key = ctx.tuning_key(
        f"matmul matmul_int8.{name} {weight.n}x{weight.k}, {ctx.max_rows} rows",
        choose_tile(ctx, form, weight.n),
        (candidate for candidate in CANDIDATES if _fits(ctx, form, candidate)),
    )
    tile = tile or tuning_key.used
    operands = {"x": x.q, "x_scales": x.scales, "bias": bias}
    buffers = {key: operand for key, operand in operands.items() if operand is not None}
    phases = []
    for bound in bind_parts(weight):
        part = bound.parts[0]
        record = MatmulInt8(
            variant=f"{name}.halves" if x.halves else name,
            halves=x.halves,
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
        phases.append(Phase(record, read, work, label, (tuning_key,)))
    return phases
