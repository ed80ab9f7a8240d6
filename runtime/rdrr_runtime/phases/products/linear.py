"""Linear layers in floating point: y[rows, N] = x[rows, K] W[N, K]^T (+ bias) (+ y).

    gemv_row       one token row, or a small batch
    matmul_tiled   many token rows

A weight that exceeds the binding limit has several parts, each with its own phase.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey, Params

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.products.linear_records import (
    FloatRecord,
    GemvRow,
    MatmulTiled,
    float_fields,
)
from rdrr_runtime.phases.weights.binding import BoundWeights, bind_parts
from rdrr_runtime.phases.weights.checks import half_units, need_rows
from rdrr_runtime.phases.weights.formats import HALF
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight

ENOUGH_TILES = 200  # workgroups of the wide tile that fill the largest GPUs
WIDE_BYTES = 24_576  # bytes of workgroup memory of the wide tile
GEMV_ROWS = 8
"""Most token rows of an item of gemv_row, which reads each weight once for them."""

CROSSOVER, CROSSOVER_OF_BLOCKS = 128, 32
"""Token rows up to which gemv_row is faster than tiles. A pass of llama-1b in F16 on an H200 takes
4.0 ms and 17.6 for 12 rows, 7.0 and 18.5 for 32, 17.2 and 21.5 for 128."""


@dataclass(frozen=True)
class MatmulTileTuning(Params):
    """The tile that a workgroup of matmul_tiled computes.

    Attributes:
        micro: Token rows of a thread, an eighth of the rows of the tile.
        outputs: Outputs of the tile.
    """

    micro: int
    outputs: int

    @property
    def bytes(self) -> int:
        """Upper bound on the workgroup memory in bytes; 0 if every device has enough."""
        return WIDE_BYTES if self.outputs > 64 else 0


GEMV_CANDIDATES = (32, 64, 128, 256)
"""Threads of a workgroup of gemv_row, which computes four outputs."""

TILE_CANDIDATES = (MatmulTileTuning(4, 64), MatmulTileTuning(8, 64), MatmulTileTuning(8, 128))


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

    def fields(self, bound: BoundWeights) -> dict[str, Any]:
        """Return the fields of `FloatRecord` for a part of the matrix."""
        return {
            **float_fields(self.ctx, bound),
            "variant": bound.types,
            "bias": self.bias is not None,
            "y": "f32" if self.logits else self.ctx.values,
            "n": self.weight.n,
            "outputs": self.weight.outputs(bound.parts[0]),
            "accumulate": self.accumulate,
        }

    def phase(
        self,
        record: FloatRecord,
        bound: BoundWeights,
        work: Work,
        tuning_key: AnyTuningKey,
        *,
        reads_step: bool,
    ) -> Phase:
        """Return the phase of a record with its operands.

        Args:
            record: Parameters of the kernel.
            bound: The part of the matrix.
            work: Size of the launch.
            tuning_key: Tuning key of the kernel.
            reads_step: Whether the shader reads the number of rows from the step.
        """
        buffers = {"x": self.x, "y": self.y, **bound.buffers}
        if reads_step:
            buffers["current"] = self.ctx.state.step
        if self.bias is not None:
            buffers["bias"] = self.bias
        return Phase(record, buffers, work, self.label, (tuning_key,))

    def tuning_name(self, name: str, rows: int) -> str:
        """Return op, kernel and shape, the name of a tuning key."""
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
) -> list[Phase]:
    """Lower a linear layer, one phase for each part of the weight.

    Args:
        ctx: Lowering context.
        weight: [N, K] in any format except column-major unquantized values.
        x: [rows, K] of the type of the activations.
        y: [rows, N] of the same type; not the same buffer as x.
        bias: f32 [N].
        accumulate: Add to y instead of replacing it (a residual stream).
        single_row: Whether x and y have one row, however many rows the pass has (the head).
        logits: Whether y is f32, whatever the type of the activations.
        tiled: Force the tiled kernel on or off; None chooses by the rows of the pass.
        label: Name of the layer, e.g. `layers.3.q_proj`, for messages and profiles.

    Raises:
        FormatError: K is not a multiple of 4, or a buffer is too small.
    """
    rows = 1 if single_row else ctx.max_rows
    need_rows(weight, label)
    need_multiple(f"{label}: K", weight.k, 4)
    ctx.need_values(f"{label}: x", x, rows * weight.k)
    (need_floats if logits else ctx.need_values)(f"{label}: y", y, rows * weight.n)
    if bias is not None:
        need_floats(f"{label}: bias", bias, weight.n)
    call = _Call(ctx, weight, x, y, bias, accumulate, single_row, logits, label)
    many = tiled if tiled is not None else rows > crossover([weight])
    lower = _matmul_tiled if many else _gemv_row
    return [lower(call, bound, rows) for bound in bind_parts(weight)]


def crossover(weights: Iterable[GpuWeight]) -> int:
    """Return the token rows up to which `gemv_row` multiplies by matrices faster than tiles."""
    return CROSSOVER_OF_BLOCKS if any(weight.dtype.is_block for weight in weights) else CROSSOVER


def _gemv_row(call: _Call, bound: BoundWeights, rows: int) -> Phase:
    weight = call.weight
    item_rows = power_of_two(rows, 1, GEMV_ROWS)
    threads = power_of_two(half_units(weight.k), 32, 128)
    tuning_key = call.ctx.workgroup_key(
        call.tuning_name("gemv_row", rows), threads, GEMV_CANDIDATES
    )
    record = GemvRow(
        threads=tuning_key.used.workgroup,
        rows=item_rows,
        subgroups=call.ctx.subgroups,
        k_padded=weight.k % HALF != 0,
        **call.fields(bound),
    )
    work = Work(-(-record.outputs // 4), None if call.single_row else item_rows)
    return call.phase(record, bound, work, tuning_key, reads_step=item_rows > 1)


def _matmul_tiled(call: _Call, bound: BoundWeights, rows: int) -> Phase:
    outputs = call.weight.outputs(bound.parts[0])
    micro = 4 if rows <= 32 else 8
    wide = micro == 8 and -(-rows // 64) * (outputs // 128) >= ENOUGH_TILES
    wide = wide and call.ctx.workgroup_storage >= WIDE_BYTES
    tuning_key = call.ctx.tuning_key(
        call.tuning_name("matmul_tiled", rows),
        MatmulTileTuning(micro, 128 if wide else 64),
        (
            candidate
            for candidate in TILE_CANDIDATES
            if candidate.bytes <= call.ctx.workgroup_storage
        ),
    )
    micro, tile_n = tuning_key.used.micro, tuning_key.used.outputs
    single = call.single_row
    fields = {**call.fields(bound), "single_row": single, "skips": call.ctx.software}
    record = MatmulTiled(micro=micro, tile_n=tile_n, **fields)
    work = Work(-(-outputs // tile_n), None if single else 8 * micro)
    return call.phase(record, bound, work, tuning_key, reads_step=not single)
