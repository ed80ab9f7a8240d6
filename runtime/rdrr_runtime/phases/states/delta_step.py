"""One token of linear attention, from projections to the delta rule's output, in one phase.

The convolution, the gates and the delta rule of a layer depend on each other only through a few
channels, so each workgroup convolves those that it needs. The phase also leaves the sums of squares
from which the output projection computes the norm that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Work
from rdrr_runtime.phases.states.delta_rule import DeltaSpec
from rdrr_runtime.phases.states.tiles import RowByRow


@dataclass(frozen=True)
class StepSpec:
    """Sizes of a step, and where the parts of a projected row are.

    Attributes:
        delta: Sizes of the delta rule.
        kernel: Taps of a channel.
        stride: Elements of a projected row, which begins with queries, keys and values.
        strength: Index of the first write strength in a row.
        decay: Index of the first decay in a row.
    """

    delta: DeltaSpec
    kernel: int
    stride: int
    strength: int
    decay: int

    @property
    def blocks(self) -> int:
        """Sums of squares of a head."""
        return self.delta.value_dim // self.delta.columns

    @property
    def workgroup_bytes(self) -> int:
        """Bytes of workgroup memory that the phase declares."""
        # Query, key and values; three sums of each lane for each column; sums of squares, of which
        # there is one for 4 columns.
        columns = self.delta.columns
        return 4 * (2 * self.delta.key_dim + columns) + 12 * self.delta.lanes * columns + columns


@dataclass(frozen=True)
class StepOperands:
    """The buffers of a step.

    Attributes:
        projected: [rows, stride].
        taps: f32: taps [channels, kernel], then rates and biases of the decay, [2, heads].
        recent: f32 [sequences, kernel, channels].
        state: f32 [sequences, heads, key_dim, value_dim].
        y: [rows, outputs].
        squares: f32 [rows, heads, blocks].
    """

    projected: BufferSlice
    taps: BufferSlice
    recent: BufferSlice
    state: BufferSlice
    y: BufferSlice
    squares: BufferSlice


@dataclass(frozen=True, kw_only=True)
class DeltaStep(RowByRow):
    """Parameters of delta_step.wgsl.

    Attributes:
        spec: The step.
    """

    shader = "states/delta_step"

    spec: StepSpec


def refusal(ctx: OpContext, spec: StepSpec) -> str | None:
    """Return why the phase cannot compute a step here; None if it can."""
    if ctx.max_rows > 1 and not ctx.multi_sequence:
        return f"the pass has {ctx.max_rows} rows of one sequence"
    if spec.delta.key_dim % 4 or spec.delta.value_dim % 4:
        return "the heads are not whole vectors of 4 elements"
    if spec.workgroup_bytes > ctx.workgroup_storage:
        return f"it needs {spec.workgroup_bytes} bytes of workgroup memory"
    return None


def delta_step(
    ctx: OpContext, operands: StepOperands, *, spec: StepSpec, label: str
) -> list[Phase]:
    """Compute one token of each sequence; `refusal` must return None for it.

    Args:
        ctx: Lowering context; no two rows of a pass belong to the same sequence.
        operands: The buffers.
        spec: Sizes of the step.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small, or the sizes are impossible.
    """
    delta, rows = spec.delta, ctx.max_rows
    delta.check(label)
    if min(spec.strength, spec.decay) < delta.inputs:
        raise FormatError("the parts of a projected row overlap", where=label)
    ctx.need_values(f"{label}: projections", operands.projected, rows * spec.stride)
    ctx.need_values(f"{label}: output", operands.y, rows * delta.outputs)
    need_floats(f"{label}: taps", operands.taps, delta.inputs * spec.kernel + 2 * delta.heads)
    need_floats(f"{label}: recent inputs", operands.recent, delta.inputs * spec.kernel)
    need_floats(f"{label}: state", operands.state, delta.outputs * delta.key_dim)
    need_floats(f"{label}: squares", operands.squares, rows * delta.heads * spec.blocks)
    record = DeltaStep(
        threads=delta.lanes * delta.columns // 4,
        columns=delta.columns,
        lanes=delta.lanes,
        steps=delta.key_dim // delta.lanes,
        value=ctx.values,
        spec=spec,
    )
    buffers = {"current": ctx.state.step, **vars(operands)}
    return [Phase(record, buffers, Work(delta.heads * spec.blocks, 1), label)]
