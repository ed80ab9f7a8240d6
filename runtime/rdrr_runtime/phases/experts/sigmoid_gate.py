"""The sigmoid gate of a shared expert: one factor for each row of the expert's output."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True, kw_only=True)
class SigmoidGateRecord(Record):
    """Parameters of sigmoid_gate.wgsl.

    Attributes:
        k: Inputs.
        width: Elements of a row of the branch.
    """

    shader = "experts/sigmoid_gate"

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
    """Multiply each row of a branch by a gate, branch = branch * sigmoid(x w), in place.

    Args:
        ctx: Lowering context.
        x: [rows, k].
        weight: f32 [k].
        branch: [rows, width]; not the same buffer as x.
        k: Inputs, a multiple of 4.
        width: Elements of a row of the branch, a multiple of 4.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
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
