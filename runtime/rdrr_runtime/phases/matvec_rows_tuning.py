"""Tuning parameters of the product with a small batch: how it divides its outputs."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.quantize_small_batch import small_batch_bytes, units_of
from rdrr_runtime.phases.weight_checks import power_of_two

ROWS_AT_A_TIME = 16
"""Most token rows whose sums a thread accumulates; further rows belong to further items."""

MANY_OUTPUTS = 8192
"""Outputs from which small teams are enough to fill a device; their threads read inputs again."""

STAGING_ROWS = 8
"""Fewest token rows for which staging their inputs in workgroup memory pays off."""

INT8_WORKGROUP = 256
"""Threads of a workgroup that quantizes its outputs, so that they are whole groups of 32."""


def at_a_time(rows: int, most: int) -> int:
    """Return the token rows of an item in a pass of `rows` rows: a power of two up to `most`."""
    return power_of_two(rows, 2, most)


@dataclass(frozen=True)
class RowsTuning(Params):
    """Tuning parameters of matvec_rows.

    Attributes:
        workgroup: Threads of a workgroup, a power of two.
        team: Threads that share the sum of an output, a power of two up to 32.
        outputs: Outputs of a thread at a time, 1, 2 or 4; gate and up count as two.
        ahead: 1 to load the next weights before multiplying the current ones, else 0.
        rows: Most token rows of an item, a power of two.
        staged: 1 to stage the inputs of these rows in workgroup memory, else 0.
    """

    workgroup: int
    team: int
    outputs: int
    ahead: int = 0
    rows: int = ROWS_AT_A_TIME
    staged: int = 0

    @property
    def outputs_of_gate(self) -> int:
        """Gated pairs of an item."""
        return self.workgroup // self.team * self.outputs // 2

    def storage(self, rows: int, k: int) -> int:
        """Return an upper bound on the workgroup memory in bytes for `rows` rows of K inputs."""
        item_rows = at_a_time(rows, self.rows)
        staged = small_batch_bytes(item_rows, k) if self.staged else 0
        return staged + 4 * self.outputs * self.workgroup + 4 * item_rows * self.outputs_of_gate


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


def rows_tuning(
    ctx: OpContext, variant: str, outputs: int, k: int, *, gate: bool, int8_out: bool
) -> TuningKey[RowsTuning]:
    """Return the tuning key of a product in a pass of `ctx`, with the parameters to use."""

    def fits(one: RowsTuning) -> bool:
        sums = one.outputs * at_a_time(ctx.max_rows, one.rows)
        paired = not gate or one.outputs > 1
        whole = not int8_out or one.outputs_of_gate % 32 == 0
        fits_memory = one.storage(ctx.max_rows, k) <= ctx.workgroup_storage
        return sums <= 64 and paired and whole and fits_memory and one.workgroup <= ctx.max_threads

    to_int8 = " to int8" if int8_out else ""
    return ctx.tuning_key(
        f"matmul matvec_rows.{variant} {outputs}x{k}{to_int8}, {ctx.max_rows} rows",
        _default(ctx, outputs, k, gate=gate, int8_out=int8_out),
        filter(fits, CANDIDATES),
    )


def _default(ctx: OpContext, outputs: int, k: int, *, gate: bool, int8_out: bool) -> RowsTuning:
    """Return the default parameters: within 10 % of the fastest on an H200 for a 1B model."""
    rows, lanes = at_a_time(ctx.max_rows, ROWS_AT_A_TIME), power_of_two(units_of(k), 4, 32)
    if int8_out:
        team = min(8, lanes)
        for item_rows in (ROWS_AT_A_TIME, STAGING_ROWS) if rows >= STAGING_ROWS else ():
            one = RowsTuning(INT8_WORKGROUP, team, 2, rows=item_rows, staged=1)
            if one.storage(rows, k) <= ctx.workgroup_storage:
                return one
        return RowsTuning(INT8_WORKGROUP, min(16, lanes), 4)
    if outputs * (1 + gate) >= MANY_OUTPUTS:
        return RowsTuning(128, min(16, lanes), min(4, 32 // rows))
    if rows == 2 or units_of(k) <= lanes:  # all loads of the weights are in flight at once
        return RowsTuning(128, lanes, 1 + gate)
    return RowsTuning(128, lanes, 2, ahead=1)
