"""One factor for each row of a branch: how much the expert that all rows share counts."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.weight_checks import power_of_two


@dataclass(frozen=True, kw_only=True)
class SigmoidGateRecord(Record):
    """Parameters of sigmoid_gate.wgsl.

    Attributes:
        subgroups: Whether sums go through subgroup operations.
        value: Type of activations.
        k: Inputs.
        width: Elements of a branch's row.
    """

    shader = "sigmoid_gate"

    subgroups: bool = choice()
    value: str = choice()
    k: int
    width: int


def sigmoid_gate(
    ctx: OpContext,
    x: BufferSlice,
    weight: BufferSlice,
    branch: BufferSlice,
    *,
    k: int,
    width: int,
    label: str,
) -> list[Phase]:
    """branch = branch * sigmoid(x w), in place.

    Args:
        ctx: Where it is lowered to.
        x: [rows, k].
        weight: f32 [k].
        branch: [rows, width]; another buffer than x.
        k: Inputs, a multiple of 4.
        width: Elements of a branch's row, a multiple of 4.
        label: What the op is.

    Raises:
        FormatError: Sizes that cannot be computed.
    """
    need_multiple(f"{label}: inputs", k, 4)
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * k)
    need_floats(f"{label}: weight", weight, k)
    ctx.need_values(f"{label}: branch", branch, ctx.max_rows * width)
    record = SigmoidGateRecord(
        threads=power_of_two(max(k, width) // 4, 32, 256),
        subgroups=ctx.subgroups,
        value=ctx.values,
        k=k,
        width=width,
    )
    return [Phase(record, {"x": x, "weight": weight, "branch": branch}, Work(1, 1), label)]
