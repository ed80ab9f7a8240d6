"""Matrix times one token row, with what comes before and after folded in: decoding's workhorse.

One dispatch takes the input through its norm (or joins the parts of split attention), multiplies
it by up to three matrices, and stores, adds to the residual stream, gates, or finds the largest
output. Only the row layout; only matrices in one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rdrr_device.buffers import BufferSlice
from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite, Params, Site
from rdrr_format.layouts import Layout

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.packing import GpuWeight
from rdrr_runtime.phases.shaders import kernel

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

UNITS: Mapping[str, int] = MappingProxyType(
    {
        "F32": 4,
        "F16": 8,
        "BF16": 8,
        "Q8_0": 32,
        "Q4_0": 32,
        "Q5_0": 32,
        "Q5_1": 32,
        "Q4_K": 32,
        "Q5_K": 32,
        "Q6_K": 32,
    }
)
"""Weights that a thread multiplies at a time."""

INT8_UNITS: Mapping[str, int] = MappingProxyType(
    {"Q8_0": 32, "Q4_0": 32, "Q5_0": 32, "Q5_1": 32, "Q4_K": 64, "Q5_K": 64, "Q6_K": 32}
)
"""The same for the types that multiply in int8."""

INT8_TYPES = frozenset(INT8_UNITS)


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
    staged = -(-k // 256) * 256
    per_32 = 32 + 8 + 8 if int8 else 128
    reductions = (16 + 4 + 8) * workgroup
    return staged // 32 * per_32 + reductions + 12 * shares + 4


def suits(ctx: OpContext, weights: tuple[GpuWeight, ...], *, int8: bool, shares: int = 0) -> bool:
    """Whether a launch on these matrices, joining `shares` parts of attention, is possible."""
    fits = staged_bytes(weights[0].k, int8=int8, shares=shares) <= ctx.workgroup_storage
    stored = all(
        one.layout is Layout.ROW and len(one.parts) == 1 and one.dtype.name in UNITS
        for one in weights
    )
    whole = all(one.dtype.name in INT8_TYPES for one in weights) if int8 else True
    return ctx.max_rows == 1 and fits and stored and whole and weights[0].k % 4 == 0


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
    gate = output.kind == "gate"
    outputs = sum(one.n for one in weights) // (2 if gate else 1)
    pairs = 2 if gate and outputs % 2 == 0 else 1
    types = ",".join(one.dtype.name.lower() for one in weights)
    variant = f"{types}.{source.kind}.{output.kind}{'.int8' if int8 else ''}"
    site = _site(ctx, variant, outputs, weights[0].k, source, output, int8=int8)
    threads, team = site.used.workgroup, site.used.team
    groups = -(-outputs // (pairs * (threads // team)))
    launched = min(groups, site.used.groups)
    constants: dict[str, float | int | bool] = {
        "WG": threads,
        "T": team,
        "K": weights[0].k,
        "K_STAGED": -(-weights[0].k // 256) * 256,
        "STRIDE": launched,
        "STEPS": -(-groups // launched),
        **source.constants(weights[0].k),
    }
    buffers = {**source.buffers(), **output.buffers()}
    for index, one in enumerate(weights):
        unit = (INT8_UNITS if int8 else UNITS)[one.dtype.name]
        constants[f"N{index}"] = one.n
        units = padded_units(one, unit)
        constants[f"UNITS{index}"] = units
        constants[f"TRIPS{index}"] = -(-units // team)
        constants[f"EXACT{index}"] = units % team == 0
        constants[f"ROW_WORDS{index}"] = one.words_per_row
        buffers[f"weight{index}"] = one.parts[0].slice
    what = kernel(
        "matvec",
        variables={
            "WEIGHTS": types,
            "INPUT": source.kind,
            "OUTPUT": output.kind,
            "ACT": output.activation,
            "BIAS": output.bias is not None,
            "INT8": int8,
            "PAIRS": pairs,
            "SUBGROUPS": ctx.subgroups,
            "INT8_OUT": output.scales is not None,
            "VALUE": ctx.values,
        },
        constants=constants,
        variant=variant,
        trusted=True,
    )
    return [dispatch(what, buffers, Grid(launched), label, (site, *sites))]


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
        MatvecTuning(min(most, ctx.max_threads)),
        filter(fits, CANDIDATES),
    )


def leaves_int8(ctx: OpContext, outputs: int) -> bool:
    """Whether a `gate` launch can leave its outputs in int8: whole groups of 16 a step."""
    return outputs % 16 == 0 and (min(WORKGROUP, ctx.max_threads) // TEAM * 2) % 16 == 0


def padded_units(weight: GpuWeight, unit: int) -> int:
    """Units of a stored row; those of a K-quant cover its last block wholly, zeros meet them."""
    block = weight.dtype.block_elements if weight.dtype.block_elements > unit else unit
    return -(-weight.k // block) * block // unit
