"""The activation of a feed-forward block without a gate, in place."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

ACTIVATIONS = ("silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "sigmoid")
"""The activations of `snippets/activate.wgsl`."""

XIELU = "xielu"
"""The activation that has parameters."""

CLIP = "clip"
"""The activation that limits absolute values."""

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class ActivationRecord(Record):
    """Parameters of activation.wgsl.

    Attributes:
        act: One of `ACTIVATIONS`, or `XIELU` or `CLIP`.
        width: Elements of a row.
        limit: Largest absolute value of `CLIP`; None for the others.
    """

    shader = "rows/activation"
    general = True

    act: str = choice()
    value: str = choice()
    width: int
    limit: float | None = None


def check_activation(name: str, label: str) -> None:
    """Check that the shaders know an activation.

    Raises:
        FormatError: They do not.
    """
    if name not in ACTIVATIONS:
        raise FormatError(
            "unknown activation", where=label, expected=" or ".join(ACTIVATIONS), found=name
        )


def activate(
    ctx: OpContext,
    x: BufferSlice,
    *,
    width: int,
    activation: str,
    parameters: BufferSlice | None = None,
    limit: float | None = None,
    label: str,
) -> list[Phase]:
    """Compute x = activation(x).

    Args:
        ctx: Lowering context.
        x: [rows, width].
        width: Elements of a row, a multiple of 4.
        activation: One of `ACTIVATIONS`, or `XIELU` or `CLIP`.
        parameters: f32 [4], alpha_p and alpha_n before softplus, beta and eps of xIELU; None for
            another activation.
        limit: Largest absolute value of `CLIP`; None for another activation.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The activation is unknown, the kernel does not support a size, or a buffer is
            too small.
    """
    if parameters is None and (limit is None or activation != CLIP):
        check_activation(activation, label)
    elif parameters is not None:
        need_floats(f"{label}: parameters", parameters, 4)
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    record = ActivationRecord(
        threads=THREADS,
        variant=activation,
        act=activation,
        value=ctx.values,
        width=width,
        limit=limit,
    )
    buffers = {"x": x} if parameters is None else {"x": x, "parameters": parameters}
    return [Phase(record, buffers, Work(-(-width // (4 * THREADS)), 1), label)]
