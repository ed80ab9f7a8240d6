"""Matrix times one token row, with what comes before and after folded in: the kernel of decoding.

One dispatch takes the input through its norm (or joins the parts of split attention), multiplies
it by up to three matrices, and stores, adds to the residual stream, gates, or finds the largest
output. Only matrices in one part; blocks along N and along K in launches of their own, and of
blocks along N no hand-over in int8, because the input is scaled anew for each group of outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite, Params, Site

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.formats import FORMATS, UNIT
from rdrr_runtime.phases.gpu_weight import GpuWeight
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.weight_units import readable

WORKGROUP = 512
"""Threads of a workgroup where the device allows it: they share the staging of the input."""

MANY_OUTPUTS = 32_768
"""From so many on (a head) the staging hardly counts, and half the threads are faster."""

TEAM = 32
"""Threads that share a row."""

MAX_WORKGROUPS = 528
"""Workgroups of a launch: enough to fill the largest GPUs, few enough to share their staging."""

MAX_OUTPUT_GROUPS = 4 * MAX_WORKGROUPS
"""Entries of `best` that a `best` launch may write."""

CANDIDATE_BYTES = 8
"""Bytes of one of them."""


INT8_TYPES = tuple(name for name, form in FORMATS.items() if not form.values)
"""Types that multiply in int8."""


@dataclass(frozen=True)
class MatvecTuning(Params):
    """How a launch divides the outputs.

    Attributes:
        workgroup: Threads that share a staged input, a power of two.
        team: Threads that share a row; fast where it is the size of a subgroup.
        groups: Most workgroups; each takes its outputs in as many steps as are needed.
    """

    workgroup: int = WORKGROUP
    team: int = TEAM
    groups: int = MAX_WORKGROUPS

    def leaves_int8(self) -> bool:
        """Whether a step of gated pairs is whole groups of 16 outputs."""
        return (self.workgroup // self.team * 2) % 16 == 0


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
"""For GPUs whose subgroups have 32 threads, and some for those of 64, 16 and 8."""

SOFTWARE = MatvecTuning(64, 8)
"""On software adapters: their subgroups have 8 threads, and each barrier costs as many steps as a
workgroup has subgroups. Six times as fast there as the default."""

COLUMN_CANDIDATES = tuple(MatvecTuning(groups=groups) for groups in (132, 264, 528, 1056, 2112))
"""For blocks along N, whose teams follow from their groups."""

ENOUGH_SLOTS = 512
"""Slots of 32 outputs of a column matrix from which on they beat twice as many of 16."""

MOST_SUMS = 4
"""Outputs of a team at once, those of up included."""


@dataclass(frozen=True)
class Input:
    """What the matrices are multiplied by.

    Attributes:
        x: [K]; for `stats`, the unjoined parts of attention, f32 [heads, splits, head_dim].
        gain: Norm weight f32 [K], or None for no norm.
        eps: Of the norm.
        offset: Added to the gain.
        stats: f32 [heads, splits, 2] of split attention, or None.
        scales: f32 and u32 of each 16 inputs, when x is int8 already, else None.
        splits: Parts of each head.
        head_dim: Width of a head.
    """

    x: BufferSlice
    gain: BufferSlice | None = None
    eps: float = 0.0
    offset: float = 0.0
    stats: BufferSlice | None = None
    scales: BufferSlice | None = None
    splits: int = 1
    head_dim: int = 4

    def shares(self, k: int) -> int:
        """Parts that are joined, of all heads together."""
        return 0 if self.stats is None else k // self.head_dim * self.splits

    @property
    def kind(self) -> str:
        """Template variable INPUT."""
        if self.stats is not None:
            return "combine"
        if self.scales is not None:
            return "quantized"
        return "plain" if self.gain is None else "norm"

    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by binding name."""
        found = {"x": self.x}
        if self.gain is not None:
            found["gain"] = self.gain
        if self.stats is not None:
            found["stats"] = self.stats
        if self.scales is not None:
            found["x_scales"] = self.scales
        return found

    def constants(self, k: int) -> dict[str, float | int]:
        """Override constants of the kind."""
        table: dict[str, dict[str, float | int]] = {
            "plain": {},
            "quantized": {},
            "norm": {"EPS": self.eps, "OFFSET": self.offset},
            "combine": {
                "SPLITS": self.splits,
                "HEAD_DIM": self.head_dim,
                "SHARES": self.shares(k),
            },
        }
        return table[self.kind]


@dataclass(frozen=True)
class Output:
    """What becomes of the products.

    Attributes:
        y: Outputs of all matrices one after the other, or of the gated pairs; f32 for `best`.
        kind: `store`, `add` (to y), `gate` or `best`.
        bias: f32, one for each output, or None.
        activation: `silu` or `gelu_tanh`, for `gate`.
        best: f32 and u32, one pair for each workgroup, for `best`.
        scales: Where the scales go when `gate` is to leave int8, else None.
    """

    y: BufferSlice
    kind: str = "store"
    bias: BufferSlice | None = None
    activation: str = ""
    best: BufferSlice | None = None
    scales: BufferSlice | None = None

    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by binding name."""
        operands = {"y": self.y, "bias": self.bias, "best": self.best, "y_scales": self.scales}
        return {name: one for name, one in operands.items() if one is not None}


def staged_bytes(k: int, *, int8: bool, shares: int = 0, workgroup: int = WORKGROUP) -> int:
    """Workgroup memory of a launch with K inputs, its reductions and `shares` parts included."""
    per_32 = 32 + 8 + 8 if int8 else 128
    reductions = (16 + 4 + 8) * workgroup
    return _staged(k) // 32 * per_32 + reductions + 12 * shares + 4


def column_staged_bytes(k: int, *, int8: bool, gate: bool, shares: int = 0) -> int:
    """The same for blocks along N; a gate stages its input twice."""
    staged = _staged(k) // 16 * (20 if int8 else 64) * (2 if gate else 1)
    return staged + (16 + 16 + 8 + 4) * WORKGROUP + 12 * shares + 4


def _staged(k: int) -> int:
    return -(-k // UNIT) * UNIT


def suits(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    *,
    int8: bool,
    shares: int = 0,
    gate: bool = False,
) -> bool:
    """Whether a launch on these matrices, joining `shares` parts of attention, is possible."""
    k, column = weights[0].k, weights[0].by_column
    whole = all(
        len(one.parts) == 1 and one.by_column == column and readable(one) for one in weights
    )
    codes = all(one.dtype.name in INT8_TYPES for one in weights) if int8 else True
    if ctx.max_rows != 1 or not whole or not codes or k % 4:
        return False
    if not column:
        return staged_bytes(k, int8=int8, shares=shares) <= ctx.workgroup_storage
    needed = column_staged_bytes(k, int8=int8, gate=gate, shares=shares)
    return needed <= ctx.workgroup_storage and (not gate or _pairs_up(weights))


def _pairs_up(weights: tuple[GpuWeight, ...]) -> bool:
    """Whether gate and up of column matrices have whole groups of the same outputs."""
    outputs = sum(one.n for one in weights) // 2
    return len({one.dtype for one in weights}) == 1 and outputs % _group(weights) == 0


def _group(weights: tuple[GpuWeight, ...]) -> int:
    return min(one.form.group for one in weights)


def matvec(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    source: Input,
    output: Output,
    *,
    int8: bool = False,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> list[Dispatch]:
    """One launch; `suits` must hold.

    Args:
        ctx: Where it is lowered to.
        weights: One to three matrices [N, K] of one K; for `gate`, gate and up, or both in one.
        source: What they are multiplied by.
        output: What becomes of the products.
        int8: Multiply in int8, with one scale for 16 inputs.
        label: What the op is.
        sites: What the input depends on.
    """
    gate, column, k = output.kind == "gate", weights[0].by_column, weights[0].k
    outputs = sum(one.n for one in weights) // (2 if gate else 1)
    types = ",".join(one.dtype.name.lower() for one in weights)
    way = f"{'.column' if column else ''}{'.int8' if int8 else ''}"
    variant = f"{types}.{source.kind}.{output.kind}{way}"
    if column:
        site = _column_site(ctx, variant, outputs, k)
    else:
        site = _site(ctx, variant, outputs, k, source, output, int8=int8)
    threads, team, per_team = _division(ctx, site.used, weights, outputs, gate=gate)
    rows = threads // team * per_team
    slots = [-(-(outputs if gate else one.n) // rows) for one in (weights[:1] if gate else weights)]
    launched = min(sum(slots), site.used.groups)
    constants: dict[str, float | int | bool] = {
        "WG": threads,
        "T": team,
        "K": k,
        "K_STAGED": _staged(k),
        "ROWS": rows,
        "STRIDE": launched,
        "STEPS": -(-sum(slots) // launched),
        **source.constants(k),
    }
    buffers = {**source.buffers(), **output.buffers()}
    for index, one in enumerate(weights):
        units = one.form.units(k)
        constants |= one.places(one.parts[0], index)
        constants |= {
            f"N{index}": one.n,
            f"SLOTS{index}": slots[index] if index < len(slots) else 0,
            f"UNITS{index}": units,
            f"TRIPS{index}": -(-units // team),
            f"EXACT{index}": units % team == 0,
        }
        buffers[f"weight{index}"] = one.parts[0].slice
    what = kernel(
        "matvec",
        variables={
            "FORMATS": tuple(one.form for one in weights),
            "COLUMN": column,
            "INPUT": source.kind,
            "OUTPUT": output.kind,
            "ACT": output.activation,
            "BIAS": output.bias is not None,
            "INT8": int8,
            "PER_TEAM": per_team,
            "SUBGROUPS": ctx.subgroups,
            "INT8_OUT": output.scales is not None,
            "VALUE": ctx.values,
        },
        constants=constants,
        variant=variant,
        trusted=True,
    )
    return [dispatch(what, buffers, Grid(launched), label, (site, *sites))]


def _division(
    ctx: OpContext,
    tuning: MatvecTuning,
    weights: tuple[GpuWeight, ...],
    outputs: int,
    *,
    gate: bool,
) -> tuple[int, int, int]:
    """Threads of a workgroup and of a team, and outputs of a team at a time."""
    if not weights[0].by_column:
        pairs = 2 if gate and outputs % 2 == 0 else 1
        return tuning.workgroup, tuning.team, pairs
    # Fewer outputs in a slot fill the device sooner, more of them share a staging.
    team = tuning.team
    rows, teams = _group(weights), min(tuning.workgroup, ctx.max_threads) // team
    if rows == 32 and outputs // 32 < ENOUGH_SLOTS and not gate:
        rows = 16
    while rows // teams * (2 if gate else 1) > MOST_SUMS:
        rows //= 2
    teams = min(teams, rows)
    return teams * team, team, rows // teams


def _column_site(ctx: OpContext, variant: str, outputs: int, k: int) -> Site[MatvecTuning]:
    return ctx.site(
        f"matmul matvec.{variant} {outputs}x{k}",
        SOFTWARE if ctx.software else MatvecTuning(),
        (SOFTWARE, *COLUMN_CANDIDATES),
    )


def _site(
    ctx: OpContext,
    variant: str,
    outputs: int,
    k: int,
    source: Input,
    output: Output,
    *,
    int8: bool,
) -> Site[MatvecTuning]:
    most = WORKGROUP // 2 if outputs > MANY_OUTPUTS else WORKGROUP
    shares = source.shares(k)

    def fits(one: MatvecTuning) -> bool:
        needed = staged_bytes(k, int8=int8, shares=shares, workgroup=one.workgroup)
        whole = output.scales is None or one.leaves_int8()
        return whole and needed <= ctx.workgroup_storage and one.workgroup <= ctx.max_threads

    return ctx.site(
        f"matmul matvec.{variant} {outputs}x{k}{' to int8' if output.scales else ''}",
        SOFTWARE if ctx.software else MatvecTuning(min(most, ctx.max_threads)),
        filter(fits, CANDIDATES),
    )


def leaves_int8(ctx: OpContext, outputs: int) -> bool:
    """Whether a `gate` launch can leave its outputs in int8: whole groups of 16 a step."""
    return outputs % 16 == 0 and (min(WORKGROUP, ctx.max_threads) // TEAM * 2) % 16 == 0
