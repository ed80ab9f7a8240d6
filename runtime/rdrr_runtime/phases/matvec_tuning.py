"""Tuning parameters of the product with one token row, and the workgroup memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.down import (
    FEWEST_PAIRS,
    PAIRS,
    most_rows,
    staged_values,
    workgroup_bytes,
)
from rdrr_runtime.phases.formats import UNIT
from rdrr_runtime.phases.fusion import Output
from rdrr_runtime.phases.gpu_weight import GpuWeight

WORKGROUP = 512
"""Default threads of a workgroup, if the device allows them; they share the staged input."""

MANY_OUTPUTS = 32_768
"""Outputs (of a head) from which staging the input takes little of the time, so that half the
threads are faster."""

TEAM = 32
"""Default threads of a team, which share the sum of an output."""

MAX_WORKGROUPS = 528
"""Default most items of a phase: enough to fill the largest GPUs, but few, because each item stages
the input once."""

GATED_WORKGROUPS = 264
"""Default most items of a gated product if workgroups have 512 threads, two for each processor of
an H200; smaller workgroups have as many threads in all. Threads hold weights of four outputs in
registers, so that further workgroups may have to start late."""

MANY_COMBINING = 200
"""Workgroups of a product that combines partial results of attention beyond which each team
computes two outputs, for half as many workgroups, since each workgroup combines them all."""


@dataclass(frozen=True)
class MatvecTuning(Params):
    """Tuning parameters of matvec.

    Attributes:
        workgroup: Threads of a workgroup, which share the staged input; a power of two.
        team: Threads that share the sum of an output; fast if it is the size of a subgroup.
        groups: Most items; each computes as many tiles of outputs as are needed.
    """

    workgroup: int = WORKGROUP
    team: int = TEAM
    groups: int = MAX_WORKGROUPS

    def can_quantize_output(self) -> bool:
        """Return whether a tile of gated pairs is whole groups of 16 outputs."""
        return self.pairs % 16 == 0

    def can_multiply_output(self) -> bool:
        """Return whether whole tiles of gated pairs make an item with a down projection."""
        return self.pairs in (FEWEST_PAIRS, PAIRS)

    @property
    def pairs(self) -> int:
        """Gated pairs of a tile, of row-major matrices."""
        return self.workgroup // self.team * 2


CANDIDATES = (
    MatvecTuning(512, 32, 264),
    MatvecTuning(512, 32, 528),
    MatvecTuning(512, 32, 1056),
    MatvecTuning(256, 32, 528),
    MatvecTuning(256, 32, 1056),
    MatvecTuning(128, 32, 1056),
    MatvecTuning(128, 32, 2112),
    MatvecTuning(1024, 32, 264),
    MatvecTuning(256, 64, 1056),
    MatvecTuning(256, 16, 1056),
    MatvecTuning(64, 8, 528),
)
"""Mostly for GPUs whose subgroups have 32 threads; some for subgroups of 64, 16 and 8."""

SOFTWARE = MatvecTuning(64, 8)
"""For software adapters, whose subgroups have 8 threads and whose barriers cost as many steps as a
workgroup has subgroups. Six times as fast there as the default."""

COLUMN_CANDIDATES = (
    *(MatvecTuning(groups=groups) for groups in (132, 264, 528, 1056, 2112)),
    MatvecTuning(WORKGROUP // 2, groups=1056),
)
"""For blocks along N, whose number of teams follows from the size of a group."""

ENOUGH_TILES = 512
"""Tiles of 32 outputs of a column-major matrix from which they beat twice as many tiles of 16."""

MAX_QUADS = 8
"""Most quads of inputs that a thread holds in registers before it stages them."""

MAX_SUMS = 4
"""Most outputs of a team at a time; gate and up count as two."""


def staged_bytes(k: int, *, int8: bool, partials: int = 0, workgroup: int = WORKGROUP) -> int:
    """Return the bytes of workgroup memory of a phase with K inputs and blocks along K.

    They include the reductions and the statistics of `partials` partial results of attention.
    """
    per_32 = 32 + 8 + 8 if int8 else 128
    reductions = (16 + 4 + 8) * workgroup
    return staged(k) // 32 * per_32 + reductions + 8 * partials + 4


def column_staged_bytes(
    k: int, *, int8: bool, gate: bool, partials: int = 0, down: GpuWeight | None = None
) -> int:
    """Return the bytes of workgroup memory with blocks along N, see `column_staged`."""
    values = column_staged(k, gate=gate, down=down) // 16 * (20 if int8 else 64)
    after = 0 if down is None else workgroup_bytes(down)
    return values + after + (16 + 16 + 8 + 4) * WORKGROUP + 8 * partials + 4


def column_staged(k: int, *, gate: bool, down: GpuWeight | None = None) -> int:
    """Return the most values that a product with blocks along N stages at a time.

    A gate stages its input twice. A down projection in the same phase stages its own after that.
    """
    inputs = staged(k) * (2 if gate else 1)
    return inputs if down is None else max(inputs, staged_values(down))


def staged(k: int) -> int:
    """Return the number of staged inputs: K rounded up to whole units."""
    return -(-k // UNIT) * UNIT


def division(
    ctx: OpContext,
    tuning: MatvecTuning,
    weights: tuple[GpuWeight, ...],
    outputs: int,
    *,
    gate: bool,
    combines: bool = False,
    quantizes: bool = False,
    down: GpuWeight | None = None,
) -> tuple[int, int, int]:
    """Return the threads of a workgroup, those of a team, and the outputs of a team at a time.

    Args:
        ctx: Lowering context.
        tuning: Tuning parameters.
        weights: Matrices of the product.
        outputs: Outputs, or gated pairs.
        gate: Whether the outputs are gated pairs.
        combines: Whether the input is combined from partial results of attention.
        quantizes: Whether gated pairs are quantized to int8, so that tiles are groups of them.
        down: The down projection that multiplies the outputs in the same phase; None for none.
    """
    if not weights[0].by_column:
        teams = tuning.workgroup // tuning.team
        several = gate or (combines and outputs // teams > MANY_COMBINING)
        if ctx.grid is not None and not quantizes:
            # Two only where a workgroup would otherwise compute them one after the other.
            several = outputs > teams * ctx.grid.groups
        return tuning.workgroup, tuning.team, 2 if several and outputs % 2 == 0 else 1
    # Small tiles fill the device sooner; in large tiles more outputs share the staged input.
    team = tuning.team
    rows = min(group_of(weights), most_rows(down))
    teams = min(tuning.workgroup, ctx.max_threads) // team
    if rows == 32 and outputs // 32 < ENOUGH_TILES and not gate:
        rows = 16
    while rows // teams * (2 if gate else 1) > MAX_SUMS:
        rows //= 2
    teams = min(teams, rows)
    return teams * team, team, rows // teams


def quads_at_once(k: int, threads: int, outputs: int) -> int:
    """Return how many quads each thread of a column-major product loads before it stages any.

    0 if it stages one after the other: it has only one, or threads have different numbers of them.
    The loads of scales come from memory, so that a thread with several quads waits for it once
    instead of once for each. It was slower in a head.
    """
    quads, rest = divmod(k, 4 * threads)
    several = not rest and staged(k) == k and 1 < quads <= MAX_QUADS
    return quads if several and outputs <= MANY_OUTPUTS else 0


def group_of(weights: tuple[GpuWeight, ...]) -> int:
    """Return how many outputs of column-major matrices share a scale."""
    return min(one.form.group for one in weights)


def column_tuning(ctx: OpContext, variant: str, outputs: int, k: int) -> TuningKey[MatvecTuning]:
    """Return the tuning key of a product with blocks along N, with the parameters to use.

    The workgroups of a head compute several tiles each, and stage the input anew for each tile.
    More and smaller workgroups can multiply while others wait for that at a barrier.
    """
    if outputs > MANY_OUTPUTS:
        default = _default(ctx, WORKGROUP // 2, 2 * MAX_WORKGROUPS)
    else:
        default = _default(ctx, WORKGROUP)
    return ctx.tuning_key(
        f"matmul matvec.{variant} {outputs}x{k}", default, (SOFTWARE, *COLUMN_CANDIDATES)
    )


def _default(ctx: OpContext, workgroup: int, groups: int = MAX_WORKGROUPS) -> MatvecTuning:
    """Return the parameters to use if none were tuned, for workgroups of `workgroup` threads.

    The workgroups of a grid are given, and each takes one item.
    """
    chosen = SOFTWARE if ctx.software else MatvecTuning(workgroup, groups=groups)
    if ctx.grid is None:
        return chosen
    return replace(chosen, groups=ctx.grid.groups)


def row_tuning(
    ctx: OpContext, variant: str, outputs: int, k: int, *, int8: bool, output: Output, partials: int
) -> TuningKey[MatvecTuning]:
    """Return the tuning key of a product with blocks along K or unquantized weights."""

    def fits(one: MatvecTuning) -> bool:
        needed = staged_bytes(k, int8=int8, partials=partials, workgroup=one.workgroup)
        whole = not output.int8 or one.can_quantize_output()
        whole = whole and (output.down is None or one.can_multiply_output())
        return whole and needed <= ctx.workgroup_storage and one.workgroup <= ctx.max_threads

    return ctx.tuning_key(
        f"matmul matvec.{variant} {outputs}x{k}{' to int8' if output.int8 else ''}",
        _row_default(ctx, outputs, output),
        filter(fits, CANDIDATES),
    )


def _row_default(ctx: OpContext, outputs: int, output: Output) -> MatvecTuning:
    """Return the parameters to use if none were tuned for a product with blocks along K."""
    down = output.down
    halves = outputs > MANY_OUTPUTS or (down is not None and down.weight.form.values)
    threads = min(WORKGROUP // 2 if halves else WORKGROUP, ctx.max_threads)
    groups = GATED_WORKGROUPS * WORKGROUP // threads if output.is_gated else MAX_WORKGROUPS
    default = _default(ctx, threads, groups)
    if down is None:
        return default
    team = 2 * ctx.threads(default.workgroup) // PAIRS  # so that a tile has no more pairs
    return replace(default, team=max(team, default.team))
