"""Linear layers: y[rows, N] = x[rows, K] W[N, K]^T, plus bias, plus what y holds already.

    kernel         layout      for
    gemv_row       row, flat   few token rows
    gemv_col       column      few token rows
    matmul_tiled   all         many token rows

A weight that exceeds the binding limit comes in parts, each with its own dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch, flat_grid
from rdrr_device.tuning import AnySite, Params
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.packing import GpuWeight, Part
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.turn_blocks import shader_type, turned_constants, turned_k
from rdrr_runtime.phases.weight_units import UNIT, power_of_two, row_padded, row_units

ENOUGH_TILES = 200  # workgroups of the wide tile that fill the largest GPUs
WIDE_BYTES = 24_576  # workgroup memory of the wide tile
GEMV_ROWS = 8  # token rows up to which reading each weight once a row of x beats tiling


@dataclass(frozen=True)
class GemvTuning(Params):
    """Threads that share the inputs of four outputs.

    Attributes:
        workgroup: A power of two.
    """

    workgroup: int


@dataclass(frozen=True)
class TileTuning(Params):
    """What a workgroup of `matmul_tiled` computes.

    Attributes:
        micro: An eighth of its token rows.
        outputs: Its outputs.
    """

    micro: int
    outputs: int

    @property
    def bytes(self) -> int:
        """Bytes of workgroup memory, or more."""
        return WIDE_BYTES if self.outputs > 64 else 0


GEMV_CANDIDATES = tuple(GemvTuning(threads) for threads in (32, 64, 128, 256))
TILE_CANDIDATES = (TileTuning(4, 64), TileTuning(8, 64), TileTuning(8, 128))


@dataclass(frozen=True)
class _Call:
    """The operands of one linear layer."""

    ctx: OpContext
    weight: GpuWeight
    x: BufferSlice
    y: BufferSlice
    bias: BufferSlice | None
    accumulate: bool
    single_row: bool
    logits: bool
    label: str

    def launch(
        self,
        name: str,
        part: Part,
        grid: Grid,
        variables: dict[str, str | int | bool],
        constants: dict[str, float | int | bool],
        sites: tuple[AnySite, ...] = (),
    ) -> Dispatch:
        bias = self.bias
        if self.weight.layout is Layout.COLUMN and part.first_row:
            bias = None  # the first part has added it
        buffers = {"current": self.ctx.state.step, "x": self.x, "y": self.y, "weight": part.slice}
        if bias is not None:
            buffers["bias"] = bias
        later_sum = self.weight.layout is Layout.COLUMN and part.first_row > 0
        what = kernel(
            name,
            variables={
                "WEIGHT": self.weight.dtype.name.lower(),
                "BIAS": bias is not None,
                "VALUE": self.ctx.values,
                "FLAT": self.weight.layout is Layout.FLAT,
                "Y": "f32" if self.logits else self.ctx.values,
                **variables,
            },
            constants={
                "FIRST": part.first_row,
                "ROW_WORDS": self.weight.words_per_row,
                "UNITS": row_units(self.weight),
                "ACCUMULATE": self.accumulate or later_sum,
                "SINGLE_ROW": self.single_row,
                **constants,
            },
            variant=str(variables.get("WEIGHT", self.weight.dtype.name.lower())),
            trusted=name == "matmul_tiled",
        )
        return dispatch(what, buffers, grid, self.label, sites)

    def site_of(self, name: str, rows: int) -> str:
        """Op, kernel and shape."""
        weight = self.weight
        kind = f"{weight.dtype.name.lower()}.{weight.layout.value}"
        turned = " turned" if weight.turned else ""
        return f"matmul {name}.{kind}{turned} {weight.n}x{weight.k}, {rows} rows"


def linear(
    ctx: OpContext,
    weight: GpuWeight,
    x: BufferSlice,
    y: BufferSlice,
    *,
    bias: BufferSlice | None = None,
    accumulate: bool = False,
    single_row: bool = False,
    logits: bool = False,
    tiled: bool | None = None,
    label: str,
) -> list[Dispatch]:
    """One linear layer.

    Args:
        ctx: Where it is lowered to.
        weight: [N, K] in any stored form.
        x: [rows, K] of the type of activations.
        y: [rows, N] of that type; another buffer than x.
        bias: f32 [N].
        accumulate: Add to y instead of replacing it (a residual stream).
        single_row: x and y have one row, whatever the pass has (the head).
        logits: y is f32, whatever the type of activations.
        tiled: Force the tiled kernel on or off; None chooses by the rows of the pass.
        label: What the layer is, e.g. `layers.3.q_proj`.

    Raises:
        FormatError: K is no multiple of 4, or a buffer is too small.
    """
    rows = 1 if single_row else ctx.max_rows
    need_multiple(f"{label}: K", weight.k, 4)
    ctx.need_values(f"{label}: x", x, rows * weight.k)
    (need_floats if logits else ctx.need_values)(f"{label}: y", y, rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    call = _Call(ctx, weight, x, y, bias, accumulate, single_row, logits, label)
    if weight.turned or (tiled if tiled is not None else rows > GEMV_ROWS):
        lower = _matmul_tiled
    elif weight.layout is Layout.COLUMN:
        lower = _gemv_col
    else:
        lower = _gemv_row
    return [lower(call, part, rows) for part in weight.parts]


def _gemv_row(call: _Call, part: Part, rows: int) -> Dispatch:
    weight = call.weight
    rows_per_group = power_of_two(rows, 1, GEMV_ROWS)
    site = call.ctx.site(
        call.site_of("gemv_row", rows),
        GemvTuning(power_of_two(row_units(weight), 32, 128)),
        (one for one in GEMV_CANDIDATES if one.workgroup <= call.ctx.max_threads),
    )
    return call.launch(
        "gemv_row",
        part,
        flat_grid(
            -(-part.rows // 4),
            rows_axis=None if call.single_row else 2,
            rows_per_group=rows_per_group,
        ),
        {"ROWS": rows_per_group, "SUBGROUPS": call.ctx.subgroups},
        {
            "WG": site.used.workgroup,
            "K": weight.k,
            "K_PADDED": row_padded(weight),
            "OUTPUTS": part.rows,
            "STRIDE": weight.n,
        },
        (site,),
    )


def _gemv_col(call: _Call, part: Part, rows: int) -> Dispatch:
    weight = call.weight
    units_per_group = 2  # two lanes read 32 bytes of one stored row, a whole memory sector
    rows_per_group = power_of_two(rows, 1, 4)
    return call.launch(
        "gemv_col",
        part,
        flat_grid(
            -(-row_units(weight) // units_per_group),
            rows_axis=None if call.single_row else 2,
            rows_per_group=rows_per_group,
        ),
        {"ROWS": rows_per_group},
        {
            "UNITS_PER_GROUP": units_per_group,
            "SPLITS": power_of_two(part.rows, 1, 64),
            "N": weight.n,
            "INPUTS": part.rows,
            "STRIDE": weight.k,
        },
    )


def _matmul_tiled(call: _Call, part: Part, rows: int) -> Dispatch:
    weight = call.weight
    by_row = weight.layout is not Layout.COLUMN or weight.turned
    outputs = part.rows if by_row else row_units(weight) * UNIT
    micro = 4 if rows <= 32 else 8
    wide = micro == 8 and -(-rows // 64) * (outputs // 128) >= ENOUGH_TILES
    wide = wide and call.ctx.workgroup_storage >= WIDE_BYTES
    site = call.ctx.site(
        call.site_of("matmul_tiled", rows),
        TileTuning(micro, 128 if wide else 64),
        (one for one in TILE_CANDIDATES if one.bytes <= call.ctx.workgroup_storage),
    )
    micro, tile_n = site.used.micro, site.used.outputs
    turned: dict[str, str | int | bool] = {"TURNED": weight.turned}
    places: dict[str, float | int | bool] = {}
    if weight.turned:
        turned["WEIGHT"] = shader_type(weight)
        places = {**turned_constants(weight), "UNITS": turned_k(weight.k) // UNIT}
    return call.launch(
        "matmul_tiled",
        part,
        Grid(-(-outputs // tile_n), 1, 1, None if call.single_row else 1, 8 * micro),
        {"LAYOUT": "row" if by_row else "column", "MICRO": micro, "TILE_N": tile_n, **turned},
        {"K": weight.k, "N": weight.n, "PART": part.rows, **places},
        (site,),
    )
