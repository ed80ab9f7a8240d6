"""Linear layers: y[rows, N] = x[rows, K] W[N, K]^T, plus bias, plus what y holds already.

    gemv_row       few token rows
    matmul_tiled   many token rows

A weight that exceeds the binding limit comes in parts, each with its own dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch, flat_grid
from rdrr_device.tuning import AnySite, Params

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.formats import HALF
from rdrr_runtime.phases.gpu_weight import GpuWeight, Part
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import halves_of, need_rows, power_of_two

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
        weight = self.weight
        buffers = {"current": self.ctx.state.step, "x": self.x, "y": self.y, "weight0": part.slice}
        if self.bias is not None:
            buffers["bias"] = self.bias
        what = kernel(
            name,
            variables={
                "FORMATS": (weight.form,),
                "BIAS": self.bias is not None,
                "VALUE": self.ctx.values,
                "Y": "f32" if self.logits else self.ctx.values,
                **variables,
            },
            constants={
                "K": weight.k,
                "FIRST": part.first_row,
                "UNITS": halves_of(weight.k),
                "ACCUMULATE": self.accumulate,
                "SINGLE_ROW": self.single_row,
                **weight.places(part, 0),
                **constants,
            },
            variant=weight.dtype.name.lower(),
            trusted=name == "matmul_tiled",
        )
        return dispatch(what, buffers, grid, self.label, sites)

    def site_of(self, name: str, rows: int) -> str:
        """Op, kernel and shape."""
        weight = self.weight
        kind = f"{weight.dtype.name.lower()}.{weight.layout.value}"
        return f"matmul {name}.{kind} {weight.n}x{weight.k}, {rows} rows"


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
        weight: [N, K] in any form but single values by column.
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
    need_rows(weight, label)
    need_multiple(f"{label}: K", weight.k, 4)
    ctx.need_values(f"{label}: x", x, rows * weight.k)
    (need_floats if logits else ctx.need_values)(f"{label}: y", y, rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    call = _Call(ctx, weight, x, y, bias, accumulate, single_row, logits, label)
    many = tiled if tiled is not None else rows > GEMV_ROWS
    lower = _matmul_tiled if many else _gemv_row
    return [lower(call, part, rows) for part in weight.parts]


def _gemv_row(call: _Call, part: Part, rows: int) -> Dispatch:
    weight, outputs = call.weight, call.weight.outputs(part)
    rows_per_group = power_of_two(rows, 1, GEMV_ROWS)
    site = call.ctx.site(
        call.site_of("gemv_row", rows),
        GemvTuning(power_of_two(halves_of(weight.k), 32, 128)),
        (one for one in GEMV_CANDIDATES if one.workgroup <= call.ctx.max_threads),
    )
    return call.launch(
        "gemv_row",
        part,
        flat_grid(
            -(-outputs // 4),
            rows_axis=None if call.single_row else 2,
            rows_per_group=rows_per_group,
        ),
        {"ROWS": rows_per_group, "EXPERTS": "", "SUBGROUPS": call.ctx.subgroups},
        {
            "WG": site.used.workgroup,
            "K_PADDED": weight.k % HALF != 0,
            "OUTPUTS": outputs,
            "STRIDE": weight.n,
        },
        (site,),
    )


def _matmul_tiled(call: _Call, part: Part, rows: int) -> Dispatch:
    weight, outputs = call.weight, call.weight.outputs(part)
    micro = 4 if rows <= 32 else 8
    wide = micro == 8 and -(-rows // 64) * (outputs // 128) >= ENOUGH_TILES
    wide = wide and call.ctx.workgroup_storage >= WIDE_BYTES
    site = call.ctx.site(
        call.site_of("matmul_tiled", rows),
        TileTuning(micro, 128 if wide else 64),
        (one for one in TILE_CANDIDATES if one.bytes <= call.ctx.workgroup_storage),
    )
    micro, tile_n = site.used.micro, site.used.outputs
    return call.launch(
        "matmul_tiled",
        part,
        Grid(-(-outputs // tile_n), 1, 1, None if call.single_row else 1, 8 * micro),
        {"MICRO": micro, "TILE_N": tile_n, "EXPERTS": ""},
        {"N": weight.n, "PART": outputs},
        (site,),
    )
