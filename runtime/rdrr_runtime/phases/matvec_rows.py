"""Matrices times a small batch of token rows in int8, each weight read once for all of them.

Between `matvec`, which takes one row through everything around the product, and `matmul_int8`,
whose tiles want many rows. The rows come in int8 from `int8_rows`; a launch stores, adds to the
residual stream or gates. Only blocks along K; only matrices in one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, dispatch, flat_grid
from rdrr_device.tuning import Params, Site

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.int8_rows import UNIT, int8_rows_bytes, units_of
from rdrr_runtime.phases.matmul_int8 import TYPES
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import power_of_two

MAX_ROWS = 32
"""Token rows of a pass up to which this beats tiles."""

ROWS_AT_A_TIME = 16
"""Token rows whose sums a thread holds, at most; more are taken by further workgroups."""

MANY_OUTPUTS = 8192
"""Rows of weights from which small teams fill a device, and read the same inputs more often."""

STAGING_ROWS = 8
"""Token rows from which it pays to keep their inputs in workgroup memory."""

INT8_WORKGROUP = 256
"""Threads of a workgroup that leaves whole groups of 32 outputs."""


@dataclass(frozen=True)
class RowsTuning(Params):
    """How a launch divides the outputs.

    Attributes:
        workgroup: Threads of a workgroup, a power of two.
        team: Threads that share an output's inputs, a power of two up to 32.
        outputs: Of a thread at a time, 1, 2 or 4; gate and up count as two.
        ahead: 1: the next weights are loaded before these are multiplied.
        rows: Token rows at a time, at most; a power of two.
        staged: 1: their inputs are in workgroup memory.
    """

    workgroup: int
    team: int
    outputs: int
    ahead: int = 0
    rows: int = ROWS_AT_A_TIME
    staged: int = 0

    @property
    def outputs_of_gate(self) -> int:
        """Gated pairs of a workgroup."""
        return self.workgroup // self.team * self.outputs // 2

    def storage(self, rows: int, k: int) -> int:
        """Bytes of workgroup memory, or more, in a pass of `rows` over K inputs."""
        held = _at_a_time(rows, self.rows)
        staged = int8_rows_bytes(held, k) if self.staged else 0
        return staged + 4 * self.outputs * self.workgroup + 4 * held * self.outputs_of_gate


CANDIDATES = (
    RowsTuning(128, 32, 1),
    RowsTuning(128, 32, 2),
    RowsTuning(128, 32, 2, ahead=1),
    RowsTuning(128, 32, 2, rows=8),
    RowsTuning(128, 32, 4, rows=8),
    RowsTuning(256, 32, 1),
    RowsTuning(128, 16, 2),
    RowsTuning(128, 16, 4),
    RowsTuning(256, 16, 4),
    RowsTuning(128, 8, 2),
    RowsTuning(256, 8, 2),
    RowsTuning(256, 8, 2, staged=1),
    RowsTuning(256, 8, 4, staged=1),
    RowsTuning(256, 8, 2, rows=8, staged=1),
    RowsTuning(64, 8, 1),
)


@dataclass(frozen=True)
class RowsOutput:
    """What becomes of the products.

    Attributes:
        ys: f32 [rows, N] for each matrix, or one for the outputs of all of them in a row; one, of
            the gated pairs, for `gate`.
        kind: `store`, `add` (to y) or `gate`.
        bias: f32, one for each output of all matrices, or None.
        activation: `silu` or `gelu_tanh`, for `gate`.
        int8: Leave the gated pairs as `int8_rows` would; see `leaves_int8`.
    """

    ys: tuple[BufferSlice, ...]
    kind: str = "store"
    bias: BufferSlice | None = None
    activation: str = ""
    int8: bool = False


def rows_held(rows: int) -> int:
    """Rows that the buffer of a pass of `rows` must hold: whole steps of the kernel."""
    return -(-rows // ROWS_AT_A_TIME) * ROWS_AT_A_TIME


def _at_a_time(rows: int, most: int) -> int:
    return power_of_two(rows, 2, most)


def suits(ctx: OpContext, weights: Sequence[GpuWeight]) -> bool:
    """Whether the kernel can multiply these matrices in a pass of `ctx`."""
    stored = all(
        not one.by_column and len(one.parts) == 1 and one.dtype.name in TYPES for one in weights
    )
    alike = len({one.k for one in weights}) == 1
    few = 2 <= ctx.max_rows <= MAX_ROWS and ctx.values == "f32"
    return few and stored and alike and weights[0].k % 4 == 0


def leaves_int8(ctx: OpContext, outputs: int) -> bool:
    """Whether a `gate` launch can leave its outputs in int8: they are whole units."""
    return outputs % UNIT == 0 and ctx.max_threads >= INT8_WORKGROUP


def buffers_bound(weights: Sequence[GpuWeight], *, bias: bool = False) -> int:
    """Storage buffers of a `store` launch."""
    return 2 + 2 * len(weights) + bias


def matvec_rows(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    x: BufferSlice,
    output: RowsOutput,
    *,
    label: str,
    tuning: RowsTuning | None = None,
) -> list[Dispatch]:
    """One launch; `suits` must hold.

    Args:
        ctx: Where it is lowered to.
        weights: One to three matrices [N, K] of one K; for `gate`, gate and up, or both in one.
        x: As `int8_rows` leaves it, with room for `rows_held` rows.
        output: What becomes of the products.
        label: What the op is.
        tuning: Instead of the parameters that are in force.

    Raises:
        FormatError: A buffer is too small.
    """
    gate, rows, k = output.kind == "gate", ctx.max_rows, weights[0].k
    sizes = [sum(one.n for one in weights) // 2] if gate else [one.n for one in weights]
    need_floats(f"{label}: x", x, int8_rows_bytes(rows_held(rows), k) // 4)
    joined = len(output.ys) < len(sizes)
    for y, size in zip(output.ys, [sum(sizes)] if joined else sizes, strict=True):
        words = int8_rows_bytes(1, size) // 4 if output.int8 else size
        need_floats(f"{label}: y", y, rows * words)
    if output.bias is not None:
        need_floats(f"{label}: bias", output.bias, sum(sizes))
    types = ",".join(one.dtype.name.lower() for one in weights)
    variant = f"{types}.{output.kind}"
    site = _site(ctx, variant, sum(sizes), k, output)
    used = tuning or site.used
    at_a_time = _at_a_time(rows, used.rows)
    step = used.workgroup // used.team * used.outputs // (2 if gate else 1)
    constants: dict[str, float | int | bool] = {
        "WG": used.workgroup,
        "UNITS": units_of(k),
    }
    buffers = {"current": ctx.state.step, "x": x}
    groups = 0
    for index, one in enumerate(weights):
        constants |= {f"N{index}": one.n, **one.places(one.parts[0], index)}
        constants[f"FIRST{index}"] = groups
        groups += 0 if gate else -(-one.n // step)
        buffers[f"weight{index}"] = one.parts[0].slice
    groups += -(-sizes[0] // step) if gate else 0
    if output.bias is not None:
        buffers["bias"] = output.bias
    for index, y in enumerate(output.ys):
        buffers[f"y{index}"] = y
    what = kernel(
        "matvec_rows",
        variables={
            "FORMATS": tuple(one.form for one in weights),
            "KIND": output.kind,
            "ACT": output.activation,
            "BIAS": output.bias is not None,
            "JOINED": joined,
            "ROWS": at_a_time,
            "STAGED": used.staged > 0,
            "T": used.team,
            "OUTPUTS": used.outputs,
            "AHEAD": used.ahead > 0,
            "WIDTH": used.outputs_of_gate if output.int8 else 0,
            "SUBGROUPS": ctx.subgroups,
        },
        constants={**constants, "LAST": groups},
        variant=f"{variant}.int8",
        trusted=True,
    )
    grid = flat_grid(groups, rows_axis=2, rows_per_group=at_a_time)
    return [dispatch(what, buffers, grid, label, (site,))]


def _site(
    ctx: OpContext, variant: str, outputs: int, k: int, output: RowsOutput
) -> Site[RowsTuning]:
    gate = output.kind == "gate"

    def fits(one: RowsTuning) -> bool:
        sums = one.outputs * _at_a_time(ctx.max_rows, one.rows)
        paired = not gate or one.outputs > 1
        whole = not output.int8 or one.outputs_of_gate % 32 == 0
        held = one.storage(ctx.max_rows, k) <= ctx.workgroup_storage
        return sums <= 64 and paired and whole and held and one.workgroup <= ctx.max_threads

    handed = " to int8" if output.int8 else ""
    return ctx.site(
        f"matmul matvec_rows.{variant} {outputs}x{k}{handed}, {ctx.max_rows} rows",
        _default(ctx, outputs, k, output),
        filter(fits, CANDIDATES),
    )


def _default(ctx: OpContext, outputs: int, k: int, output: RowsOutput) -> RowsTuning:
    """The fastest on an H200 for the shapes of a 1B model, or within a tenth of it."""
    rows, lanes = _at_a_time(ctx.max_rows, ROWS_AT_A_TIME), power_of_two(units_of(k), 4, 32)
    gate = output.kind == "gate"
    if output.int8:
        team = min(8, lanes)
        for held in (ROWS_AT_A_TIME, STAGING_ROWS) if rows >= STAGING_ROWS else ():
            one = RowsTuning(INT8_WORKGROUP, team, 2, rows=held, staged=1)
            if one.storage(rows, k) <= ctx.workgroup_storage:
                return one
        return RowsTuning(INT8_WORKGROUP, min(16, lanes), 4)
    if outputs * (1 + gate) >= MANY_OUTPUTS:
        return RowsTuning(128, min(16, lanes), min(4, 32 // rows))
    if rows == 2 or units_of(k) <= lanes:  # weights that are all on their way at once
        return RowsTuning(128, lanes, 1 + gate)
    return RowsTuning(128, lanes, 2, ahead=1)
