"""Tuning parameters of the product with one token row, and the workgroup memory that it needs.

What is particular to blocks along N is in `rdrr_runtime.phases.products.matvec_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.products.down import FEWEST_PAIRS, PAIRS
from rdrr_runtime.phases.products.fusion import Input, Output
from rdrr_runtime.phases.weights.formats import UNIT

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

GRID_TEAMS = (16, 8, 4)
"""Threads of a team in one dispatch, beside the usual ones: with `TEAM`, threads that have no unit
of a short row idle. A token of Qwen3 0.6B took 576 us on an H200 with teams of 16 for rows of 16
units, and 48 for the 48 units of few outputs, and 647 us with 32 for all."""

MOST_HELD = 4
"""Most vectors of the input that a thread loads together."""

SUMMERS = 8
"""Threads that add up the sums of a team across subgroups, which has no fewer. It has a multiple of
them if there are enough, so that its loads are whole lines."""

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


def staged_bytes(k: int, *, int8: bool, partials: int = 0, workgroup: int = WORKGROUP) -> int:
    """Return the bytes of workgroup memory of a phase with K inputs and blocks along K.

    They include the reductions and the statistics of `partials` partial results of attention.
    """
    per_32 = 32 + 8 + 8 if int8 else 128
    reductions = (16 + 4 + 8) * workgroup
    return staged(k) // 32 * per_32 + reductions + 8 * partials + 4


def staged(k: int) -> int:
    """Return the number of staged inputs: K rounded up to whole units."""
    return -(-k // UNIT) * UNIT


def held_vectors(ctx: OpContext, source: Input, k: int, threads: int) -> tuple[int, bool]:
    """Return how a thread stages a row-major product's input.

    In one dispatch it would wait for each vector otherwise; as dispatches the input is there.

    Returns:
        The vectors that it loads together, and whether these are all that it stages.
    """
    vectors = -(-staged(k) // (16 if source.kind == "quantized" else 4) // threads)
    is_read_alone = source.added is None and source.kind in ("plain", "norm", "quantized")
    held = min(vectors, MOST_HELD) if ctx.grid is not None and is_read_alone else 1
    return held, vectors <= held


@dataclass(frozen=True)
class Division:
    """How the outputs of a product are divided.

    Attributes:
        threads: Threads of a workgroup.
        team: Threads that share the sum of an output.
        per_team: Outputs (or gated pairs) that a team computes at a time.
        tile_groups: Groups of outputs of a tile, each with scales of its own; 1 with rows.
        spread: Teams of any number of threads, which may lie across subgroups; 0 for teams of a
            power of two, which share a workgroup.
        crossed: Whether the threads of such a team are every `spread`-th one, so that neighbouring
            threads compute neighbouring outputs.
    """

    threads: int
    team: int
    per_team: int
    tile_groups: int = 1
    spread: int = 0
    crossed: bool = False

    @property
    def rows(self) -> int:
        """Outputs (or gated pairs) of a tile."""
        return (self.spread or self.threads // self.team) * self.per_team

    def loads(self, outputs: int, units: int, groups: int) -> int:
        """Return the units that a thread loads one after the other.

        Args:
            outputs: Outputs, or gated pairs.
            units: Units of a row.
            groups: Workgroups.
        """
        rounds = -(-outputs // (self.rows * groups))
        return rounds * self.per_team * -(-units // self.team)


def row_division(
    ctx: OpContext,
    tuning: MatvecTuning,
    outputs: int,
    units: int,
    *,
    output: Output,
    combines: bool = False,
    units_first: bool = False,
) -> Division:
    """Return how the outputs of a product with blocks along K are divided.

    Args:
        ctx: Lowering context.
        tuning: Tuning parameters.
        outputs: Outputs, or gated pairs.
        units: Units of a row.
        output: Output of the product.
        combines: Whether the input is combined from partial results of attention.
        units_first: Whether the units of all outputs for the same inputs lie side by side.
    """
    threads, teams = tuning.workgroup, tuning.workgroup // tuning.team
    several = output.is_gated or (combines and outputs // teams > MANY_COMBINING)
    if ctx.grid is not None and not output.int8:
        # Two only where a workgroup would otherwise compute them one after the other.
        several = outputs > teams * ctx.grid.groups
    usual = Division(threads, tuning.team, 2 if several and outputs % 2 == 0 else 1)
    if ctx.grid is None:
        return usual
    if units_first and not output.is_gated:
        return crossed_division(threads, -(-outputs // ctx.grid.groups), units)
    return _grid_division(ctx, usual, outputs, units, spreads=not output.is_gated)


def _grid_division(
    ctx: OpContext, usual: Division, outputs: int, units: int, *, spreads: bool
) -> Division:
    """Return the division with which a thread of a grid loads the fewest units in turn.

    Smaller teams must save a tenth, and teams across subgroups, which need two more barriers, half.
    """
    assert ctx.grid is not None, "only a grid has a number of workgroups"
    groups, threads = ctx.grid.groups, usual.threads

    def loads(division: Division) -> int:
        return division.loads(outputs, units, groups)

    smaller = (
        Division(threads, team, per_team)
        for team in GRID_TEAMS
        for per_team in ((2, 1) if outputs % 2 == 0 else (1,))
        if team < usual.team
    )
    fewest = min(smaller, key=loads, default=usual)
    best = fewest if 10 * loads(fewest) <= 9 * loads(usual) else usual
    spread = _spread_division(threads, -(-outputs // groups), units)
    is_wider = spread.team > best.team and spread.team >= SUMMERS
    return spread if spreads and is_wider and 2 * loads(spread) <= loads(best) else best


def _spread_division(threads: int, rows: int, units: int) -> Division:
    """Return a division of threads into teams for `rows` outputs, with the fewest trips."""
    most = max(threads // rows, 1)
    team = -(-units // -(-units // most))
    whole = -(-team // SUMMERS) * SUMMERS
    return Division(threads, whole if whole <= most else team, 1, spread=rows)


def crossed_division(threads: int, rows: int, units: int) -> Division:
    """Return a division for at most `rows` outputs at a time of a matrix whose units lie first.

    Neighbouring threads read neighbouring units then. If a team read along its row, each of its
    threads would need a line of the cache for itself, which takes twice as long.
    """
    rows = min(rows, threads // SUMMERS)
    trips = -(-units // (threads // rows))
    return Division(threads, -(-units // trips), 1, spread=rows, crossed=True)


def default_tuning(ctx: OpContext, workgroup: int, groups: int = MAX_WORKGROUPS) -> MatvecTuning:
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

    def fits(tuning: MatvecTuning) -> bool:
        needed = staged_bytes(k, int8=int8, partials=partials, workgroup=tuning.workgroup)
        whole = not output.int8 or tuning.can_quantize_output()
        whole = whole and (output.down is None or tuning.can_multiply_output())
        return whole and needed <= ctx.workgroup_storage and tuning.workgroup <= ctx.max_threads

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
    default = default_tuning(ctx, threads, groups)
    if down is None:
        return default
    team = 2 * ctx.threads(default.workgroup) // PAIRS  # so that a tile has no more pairs
    return replace(default, team=max(team, default.team))
