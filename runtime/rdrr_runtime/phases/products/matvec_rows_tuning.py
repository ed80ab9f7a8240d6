"""Tuning parameters of the product with a small batch: how it divides its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.context import Grid, OpContext, power_of_two
from rdrr_runtime.phases.products.quantize_small_batch import small_batch_bytes, units_of

MAX_ITEM_ROWS = 32
"""Most token rows of an item."""

ROWS_AT_A_TIME = 16
"""Most token rows whose sums a thread accumulates; others belong to other groups or items."""

MANY_OUTPUTS = 8192
"""Outputs from which small teams are enough to fill a device; their threads read inputs again."""

STAGING_ROWS = 8
"""Fewest token rows for which staging their inputs in workgroup memory pays off."""

GROUPED_ROWS = 8
"""Fewest token rows for which groups of teams, or teams of two subgroups, pay off."""

INT8_WORKGROUP = 256
"""Threads of a workgroup that quantizes its outputs, so that they are whole groups of 32."""

LARGE_WORKGROUP = 512
"""Threads that share the staged inputs of many rows, on devices that allow as many."""

HEAD_OUTPUTS = 32_768
"""Outputs (of a head) from which few workgroups that stage the inputs once are faster than many
that read them through the cache, which took a third of the time on an H200."""

HEAD_ROWS = (8, 16)
"""Token rows of an item for which this holds: the inputs of 32 rows do not fit workgroup memory."""

HEAD_WORKGROUPS = 132
"""Workgroups of `LARGE_WORKGROUP` threads of a head, one for each processor of an H200."""

GRID_STAGED_BYTES = 20 << 10
"""Most bytes of inputs that are staged at a time in one dispatch, whose phases share 48 KiB."""

GRID_TEAMS = (32, 16, 8)
"""Threads of a team in one dispatch, the most that leave all outputs to the workgroups at once. On
an H200 a step of 8 rows of llama-1b takes 808 us with one output for each of them, where the
residual stream is added to, and 1,066 us with teams of 64 threads and two outputs."""

SUBGROUP = 32
"""Threads of the subgroups of most devices; a wider team joins its sums in workgroup memory."""


def at_a_time(rows: int, most: int) -> int:
    """Return the token rows of an item in a pass of `rows` rows: a power of two up to `most`."""
    return power_of_two(rows, 2, most)


@dataclass(frozen=True)
class RowsTuning(Params):
    """Tuning parameters of matvec_rows.

    Attributes:
        workgroup: Threads of a workgroup, a power of two.
        team: Threads that share the sum of an output, a power of two.
        outputs: Outputs of a thread at a time, 1, 2 or 4; gate and up count as two.
        ahead: 1 to load the next weights before multiplying the current ones, else 0.
        rows: Most token rows of a team, a power of two.
        staged: Parts in which the inputs of an item's rows are staged in workgroup memory; 0 to
            read them through the cache.
        groups: Most groups of teams of a workgroup, a power of two. The groups compute the same
            outputs for different rows.
        workgroups: Most workgroups; each computes as many items as are needed and stages the inputs
            once. 0 for a workgroup for each item.
    """

    workgroup: int
    team: int
    outputs: int
    ahead: int = 0
    rows: int = ROWS_AT_A_TIME
    staged: int = 0
    groups: int = 1
    workgroups: int = 0

    def for_rows(self, rows: int) -> RowsTuning:
        """Return these parameters for a pass of `rows` rows, without threads for further rows."""
        each = at_a_time(rows, self.rows)
        return replace(self, rows=each, groups=power_of_two(-(-rows // each), 1, self.groups))

    @property
    def lanes(self) -> int:
        """Threads of a team that add up their sums by subgroup operations."""
        return min(self.team, SUBGROUP)

    @property
    def item_rows(self) -> int:
        """Token rows of an item."""
        return self.rows * self.groups

    @property
    def item_outputs(self) -> int:
        """Outputs of an item."""
        return self.workgroup // self.team // self.groups * self.outputs

    @property
    def outputs_of_gate(self) -> int:
        """Gated pairs of an item."""
        return self.item_outputs // 2

    def storage(self, rows: int, k: int) -> int:
        """Return an upper bound on the workgroup memory in bytes for `rows` rows of K inputs."""
        tuning = self.for_rows(rows)
        staged = small_batch_bytes(tuning.item_rows, -(-k // self.staged)) if self.staged else 0
        return (
            staged
            + 4 * self.outputs * self.workgroup
            + 4 * tuning.item_rows * tuning.outputs_of_gate
        )


CANDIDATES = (
    RowsTuning(128, 32, 1),
    RowsTuning(128, 32, 2),
    RowsTuning(128, 32, 2, ahead=1),
    RowsTuning(128, 32, 4, rows=8),
    RowsTuning(128, 32, 4, groups=2),
    RowsTuning(256, 32, 2, rows=4, groups=2),
    RowsTuning(256, 32, 2, rows=8, groups=2),
    RowsTuning(256, 32, 2, groups=2),
    RowsTuning(256, 16, 2, rows=8, groups=4),
    RowsTuning(256, 64, 2, rows=8),
    RowsTuning(256, 64, 2, rows=8, ahead=1),
    RowsTuning(128, 16, 2),
    RowsTuning(128, 16, 2, groups=2),
    RowsTuning(128, 16, 4),
    RowsTuning(256, 16, 4),
    RowsTuning(256, 4, 4, groups=2),
    RowsTuning(256, 8, 2),
    RowsTuning(256, 8, 2, staged=1),
    RowsTuning(256, 8, 2, ahead=1, staged=1),
    RowsTuning(512, 8, 2, staged=1),
    RowsTuning(512, 8, 2, staged=1, workgroups=132),
    RowsTuning(512, 8, 2, ahead=1, staged=1, workgroups=132),
    RowsTuning(256, 8, 2, ahead=1, staged=1, workgroups=264),
    RowsTuning(256, 8, 4, staged=1),
    RowsTuning(256, 8, 2, rows=8, staged=1),
    RowsTuning(256, 8, 2, ahead=1, rows=8, staged=1),
    RowsTuning(64, 8, 1),
)


@dataclass(frozen=True)
class RowsShape:
    """What the best tuning parameters of a product depend on.

    Attributes:
        outputs: Outputs of all matrices; gated pairs for `gate`.
        k: Inputs.
        targets: Matrices with outputs of their own; gate and up count as one.
        gate: Whether pairs of outputs are gated.
        int8_out: Whether the outputs are quantized to int8.
    """

    outputs: int
    k: int
    targets: int = 1
    gate: bool = False
    int8_out: bool = False


def rows_tuning(ctx: OpContext, variant: str, shape: RowsShape) -> TuningKey[RowsTuning]:
    """Return the tuning key of a product in a pass of `ctx`, with the parameters to use."""

    def fits(tuning: RowsTuning) -> bool:
        sums = tuning.outputs * at_a_time(ctx.max_rows, tuning.rows)
        paired = not shape.gate or tuning.outputs > 1
        whole = not shape.int8_out or tuning.for_rows(ctx.max_rows).outputs_of_gate % 32 == 0
        fits_memory = tuning.storage(ctx.max_rows, shape.k) <= ctx.workgroup_storage
        return (
            sums <= 64 and paired and whole and fits_memory and tuning.workgroup <= ctx.max_threads
        )

    to_int8 = " to int8" if shape.int8_out else ""
    return ctx.tuning_key(
        f"matmul matvec_rows.{variant} {shape.outputs}x{shape.k}{to_int8}, {ctx.max_rows} rows",
        _default(ctx, shape),
        filter(fits, CANDIDATES),
    )


def _default(ctx: OpContext, shape: RowsShape) -> RowsTuning:
    """Return the default parameters: within 10 % of the fastest on an H200 for a 1B model."""
    if ctx.grid is not None:
        return _of_grid(ctx.grid, at_a_time(ctx.max_rows, ROWS_AT_A_TIME), shape)
    if shape.int8_out:
        return _default_to_int8(ctx, shape.k)
    rows, units = at_a_time(ctx.max_rows, MAX_ITEM_ROWS), units_of(shape.k)
    each, lanes = min(rows, ROWS_AT_A_TIME), power_of_two(units, 4, SUBGROUP)
    if shape.outputs >= HEAD_OUTPUTS and not shape.gate and rows in HEAD_ROWS:
        head = _of_head(rows, lanes)
        fits = head.storage(rows, shape.k) <= ctx.workgroup_storage
        if fits and head.workgroup <= ctx.max_threads:
            return head
    if shape.outputs * (1 + shape.gate) >= MANY_OUTPUTS:
        groups = rows // each
        return RowsTuning(128, min(16, lanes), min(4, 32 // each), rows=each, groups=groups)
    # The code is repeated for each target; two outputs for 16 rows of three targets are slower.
    if rows == GROUPED_ROWS or (rows > GROUPED_ROWS and shape.targets == 1):
        if rows == GROUPED_ROWS and units > SUBGROUP:
            return RowsTuning(256, 2 * SUBGROUP, 2, rows=rows)
        return RowsTuning(256, lanes, 2, rows=rows // 2, groups=2)
    if rows == 2 or units <= lanes:  # all loads of the weights are in flight at once
        return RowsTuning(128, lanes, 1 + shape.gate)
    return RowsTuning(128, lanes, 2, ahead=1)


def _of_grid(grid: Grid, rows: int, shape: RowsShape) -> RowsTuning:
    """Return the parameters of a product in one dispatch: all workgroups have an item, if possible.

    All stage their inputs, since no cache holds what another workgroup has written.
    """
    units, is_head = units_of(shape.k), shape.outputs >= HEAD_OUTPUTS and not shape.gate
    most = min(SUBGROUP, grid.threads // 32) if shape.int8_out else SUBGROUP
    fitting = (team for team in GRID_TEAMS if shape.outputs * team <= grid.threads * grid.groups)
    team = min(next(fitting, GRID_TEAMS[-1]), most)
    return RowsTuning(
        grid.threads,
        GRID_TEAMS[-1] if is_head else team,
        2 if shape.gate or is_head else 1,
        int(units > team),
        rows,
        staged=-(-small_batch_bytes(rows, shape.k) // GRID_STAGED_BYTES),
        workgroups=grid.groups if is_head else 0,
    )


def _of_head(rows: int, lanes: int) -> RowsTuning:
    """Return the parameters of a head whose workgroups stage the inputs of all rows once."""
    ahead = int(rows == STAGING_ROWS)  # with more rows, threads lack the registers
    return RowsTuning(
        LARGE_WORKGROUP, min(8, lanes), 2, ahead, rows, staged=1, workgroups=HEAD_WORKGROUPS
    )


def _default_to_int8(ctx: OpContext, k: int) -> RowsTuning:
    """Return the default parameters of a product that quantizes its gated outputs.

    The inputs are staged if those of all rows of an item fit in workgroup memory. Otherwise the
    rows of more than one item are divided into groups, which read each weight into the cache once.
    """
    rows, lanes = at_a_time(ctx.max_rows, MAX_ITEM_ROWS), power_of_two(units_of(k), 4, SUBGROUP)
    each, team = min(rows, ROWS_AT_A_TIME), min(8, lanes)
    staged = RowsTuning(INT8_WORKGROUP, team, 2, ahead=1, rows=each, staged=1)
    if rows > each and ctx.max_threads >= LARGE_WORKGROUP:
        staged = replace(staged, workgroup=LARGE_WORKGROUP, ahead=0)
    fits = staged.storage(rows, k) <= ctx.workgroup_storage
    if rows >= STAGING_ROWS and fits:
        return staged
    if rows > each:
        return RowsTuning(INT8_WORKGROUP, min(4, lanes), 4, rows=each, groups=rows // each)
    fewer = replace(staged, rows=STAGING_ROWS)
    if rows > STAGING_ROWS and fewer.storage(rows, k) <= ctx.workgroup_storage:
        return fewer
    return RowsTuning(INT8_WORKGROUP, min(16, lanes), 4)
