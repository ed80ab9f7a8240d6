"""Matrix times one token row for turned blocks: `matvec` for the column layout, in int8.

The same inputs and outputs, in one launch; only its hand-over in int8 is missing, because the
input is scaled anew for each group of outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.kernels import Dispatch, Grid, dispatch
from rdrr_device.tuning import AnySite, Params

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.matvec import MAX_WORKGROUPS, TEAM, WORKGROUP, Input, Output
from rdrr_runtime.phases.packing import GpuWeight
from rdrr_runtime.phases.shaders import kernel
from rdrr_runtime.phases.turn_blocks import TURNED_TYPES, UNIT, factors_at, turned_k

ENOUGH_SLOTS = 512
"""Slots of 32 outputs from which on they are preferred to twice as many of 16."""

MOST_SUMS = 4
"""Rows of a team at once, those of up included."""


@dataclass(frozen=True)
class TurnedTuning(Params):
    """How a launch divides the outputs.

    Attributes:
        groups: Most workgroups; each takes its slots in as many steps as are needed.
    """

    groups: int = MAX_WORKGROUPS


CANDIDATES = tuple(TurnedTuning(groups) for groups in (132, 264, 528, 1056, 2112))


def staged_bytes(k: int, *, gate: bool, shares: int = 0) -> int:
    """Workgroup memory of a launch with K inputs, joining `shares` parts of attention."""
    staged = turned_k(k) * 20 // 16 * (2 if gate else 1)
    return staged + (16 + 16 + 8 + 4) * WORKGROUP + 12 * shares + 4


def suits_turned(
    ctx: OpContext, weights: tuple[GpuWeight, ...], *, gate: bool = False, shares: int = 0
) -> bool:
    """Whether a launch on these turned matrices is possible."""
    if ctx.max_rows != 1 or not all(one.turned for one in weights):
        return False
    if (
        weights[0].k % 4
        or staged_bytes(weights[0].k, gate=gate, shares=shares) > ctx.workgroup_storage
    ):
        return False
    if not gate:
        return True
    outputs = sum(one.n for one in weights) // 2
    return len({one.dtype for one in weights}) == 1 and outputs % _group(weights) == 0


def _group(weights: tuple[GpuWeight, ...]) -> int:
    return min(TURNED_TYPES[one.dtype.name].group for one in weights)


def _slot_rows(weights: tuple[GpuWeight, ...], outputs: int, teams: int, *, gate: bool) -> int:
    """Outputs of a slot: fewer fill the device sooner, more share a staging."""
    group = _group(weights)
    stages = 2 if gate else 1
    if group == 32 and (outputs // 32 < ENOUGH_SLOTS and not gate):
        group = 16
    while group // teams * stages > MOST_SUMS:
        group //= 2
    return group


def matvec_turned(
    ctx: OpContext,
    weights: tuple[GpuWeight, ...],
    source: Input,
    output: Output,
    *,
    label: str,
    sites: tuple[AnySite, ...] = (),
) -> list[Dispatch]:
    """One launch; `suits_turned` must hold.

    Args:
        ctx: Where it is lowered to.
        weights: One to three turned matrices [N, K] of one K; for `gate`, gate and up, or both in
            one.
        source: What they are multiplied by, in f32.
        output: What becomes of the products, in f32.
        label: What the op is.
        sites: What the input depends on.
    """
    gate = output.kind == "gate"
    outputs = sum(one.n for one in weights) // (2 if gate else 1)
    teams = min(WORKGROUP, ctx.max_threads) // TEAM
    rows = _slot_rows(weights, outputs, teams, gate=gate)
    teams = min(teams, rows)
    counted = weights[:1] if gate else weights
    slots = [-(-(outputs if gate else one.n) // rows) for one in counted]
    types = ",".join(one.dtype.name.lower() for one in weights)
    variant = f"{types}.{source.kind}.{output.kind}"
    site = ctx.site(
        f"matmul matvec_turned.{variant} {outputs}x{weights[0].k}", TurnedTuning(), CANDIDATES
    )
    launched = min(sum(slots), site.used.groups)
    k = turned_k(weights[0].k)
    constants: dict[str, float | int | bool] = {
        "WG": teams * TEAM,
        "T": TEAM,
        "K": weights[0].k,
        "K_STAGED": k,
        "STAGED_WORDS": k // 16 * (2 if gate else 1),
        "STRIDE": launched,
        "STEPS": -(-sum(slots) // launched),
        "TRIPS": -(-k // (UNIT * TEAM)),
        **source.constants(weights[0].k),
    }
    buffers = {**source.buffers(), **output.buffers()}
    for index, one in enumerate(weights):
        constants[f"N{index}"] = one.n
        constants[f"SLOTS{index}"] = slots[index] if index < len(slots) else 0
        constants[f"FACTORS{index}"] = factors_at(one)
        buffers[f"weight{index}"] = one.parts[0].slice
    what = kernel(
        "matvec_turned",
        variables={
            "WEIGHTS": types,
            "INPUT": source.kind,
            "OUTPUT": output.kind,
            "ACT": output.activation,
            "BIAS": output.bias is not None,
            "ROWS": rows,
            "PER_TEAM": rows // teams,
            "SUBGROUPS": ctx.subgroups,
        },
        constants=constants,
        variant=variant,
        trusted=True,
    )
    return [dispatch(what, buffers, Grid(launched), label, (site, *sites))]
