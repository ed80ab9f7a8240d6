"""The gated activation of a feed-forward block, such as SwiGLU or GeGLU (arXiv 2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_manifests.graph import Clamp

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.routes import Routed, need_routes
from rdrr_runtime.phases.rows.activation import check_activation

CLAMPED = "clamped_silu"
"""The formula of snippets/activate.wgsl for the clamped SwiGLU."""

THREADS = 64


def formula_of(activation: str, clamp: Clamp | None) -> str:
    """Return the formula of snippets/activate.wgsl for a gate, clamped or not."""
    return activation if clamp is None else CLAMPED


@dataclass(frozen=True, kw_only=True)
class GatedActivationRecord(Record):
    """Parameters of gated_activation.wgsl.

    Attributes:
        act: One of `rdrr_runtime.phases.rows.activation.ACTIVATIONS`, or `CLAMPED`.
        fused: Whether gate and up are the two halves of one row, or of a part of a row.
        width: Elements of a row of y, the intermediate size.
        bias: Whether the biases of each route's expert are added first.
        scaled: Whether gate and up are multiplied by the weight of each route first.
        experts: With `bias` or `scaled`: number of experts.
        top_k: With `bias` or `scaled`: routes of a row.
        clamp: For the clamped SwiGLU: its constants.
        up_parts: Parts of `width` elements of a row of up.
        up_part: The part that is read.
        gate_scale: Factor on the gate.
        pairs: With `fused`: parts of a row that hold gate and up.
    """

    shader = "rows/gated_activation"
    general = True

    act: str = choice()
    fused: bool = choice()
    value: str = choice()
    width: int
    bias: bool = choice(default=False)
    scaled: bool = choice(default=False)
    experts: int | None = None
    top_k: int | None = None
    clamp: Clamp | None = None
    up_parts: int | None = None
    up_part: int | None = None
    gate_scale: float = 1.0
    pairs: int | None = None


@dataclass(frozen=True)
class ExpertGates:
    """What is added to the gates and ups of experts, or multiplied by them, before the activation.

    Attributes:
        routed: The routes, in whose order a row holds the elements of its experts.
        bias: f32 [2, experts, width of an expert]: of the gates, then of the ups; None for none.
    """

    routed: Routed
    bias: BufferSlice | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether gates and ups are used as they are."""
        return self.bias is None and not self.routed.scales_inputs


def gated_activation(
    ctx: OpContext,
    gate: BufferSlice,
    up: BufferSlice | None,
    y: BufferSlice,
    *,
    width: int,
    activation: str,
    clamp: Clamp | None = None,
    gates: ExpertGates | None = None,
    up_parts: int = 1,
    up_part: int = 0,
    gate_scale: float = 1.0,
    label: str,
) -> list[Phase]:
    """Compute y = activation(gate_scale * gate) * up, or the clamped SwiGLU.

    Args:
        ctx: Lowering context.
        gate: [rows, width], or [rows, 2 width] with gate then up if `up` is None; with `gates`
            then those of each route.
        up: [rows, up_parts, width], or None.
        y: [rows, width]; not the same buffer as the inputs.
        width: Intermediate size, a multiple of 4.
        activation: One of `rdrr_runtime.phases.rows.activation.ACTIVATIONS`.
        clamp: Constants of the clamped SwiGLU, or None for the usual formula.
        gates: What to do with gate and up of experts first; None for nothing.
        up_parts: Parts that a row of up consists of.
        up_part: The part that is read.
        gate_scale: Factor on the gate.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The activation is unknown, the kernel does not support a size, or a buffer is
            too small.
    """
    check_activation(activation, label)
    need_multiple(f"{label}: width", width, 4)
    ctx.need_values(f"{label}: y", y, ctx.max_rows * width)
    ctx.need_values(f"{label}: gate", gate, ctx.max_rows * width * (2 if up is None else 1))
    if up is None:
        inputs = {"gate_up": gate}
    else:
        ctx.need_values(f"{label}: up", up, ctx.max_rows * width * up_parts)
        inputs = {"gate": gate, "up": up}
    counts: dict[str, int] = {}
    pairs = 1 if gates is None else gates.routed.top_k
    need_multiple(f"{label}: width", width, 4 * pairs)
    gates = None if gates is None or gates.changes_nothing else gates
    if gates is not None:
        inputs |= _checked_buffers(ctx, gates, width, label)
        counts = {"experts": gates.routed.experts, "top_k": gates.routed.top_k}
    act = formula_of(activation, clamp)
    record = GatedActivationRecord(
        threads=THREADS,
        variant=act,
        act=act,
        fused=up is None,
        value=ctx.values,
        width=width,
        bias=gates is not None and gates.bias is not None,
        scaled=gates is not None and gates.routed.scales_inputs,
        clamp=clamp,
        **counts,
        up_parts=None if up is None else up_parts,
        up_part=None if up is None else up_part,
        gate_scale=gate_scale,
        pairs=pairs if up is None else None,
    )
    work = Work(-(-width // (4 * THREADS)), 1)
    return [Phase(record, {"y": y, **inputs}, work, label)]


def _checked_buffers(
    ctx: OpContext, gates: ExpertGates, width: int, label: str
) -> dict[str, BufferSlice]:
    """Return the routes, and the biases of their experts if there are any, after checking both."""
    routed = gates.routed
    need_routes(ctx, routed, label)
    if gates.bias is None:
        return {"routes": routed.routes}
    need_floats(f"{label}: bias", gates.bias, 2 * routed.experts * width // routed.top_k)
    return {"routes": routed.routes, "bias": gates.bias}
