"""Causal convolutions along the tokens with a few taps for each channel, and their states."""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True)
class ConvolutionSpec:
    """A short convolution.

    Attributes:
        channels: Elements of a row of the output.
        kernel: Taps of a channel.
        activation: Activation of the result, as in snippets/activate.wgsl; None for none.
        gated: Whether a row of the input consists of inner gates, outer gates and values.
        factors: Factors on the sums of runs of channels: the end of each run, and its factor.
            Further channels have the factor 1.
    """

    channels: int
    kernel: int
    activation: str | None = None
    gated: bool = False
    factors: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionRecord(Record):
    """Parameters of short_convolution.wgsl.

    Attributes:
        act: Activation; empty for none.
        bias: Whether each channel has a bias.
        gated: See `ConvolutionSpec`.
        factors: See `ConvolutionSpec`.
        single: Whether no sequence has more than one row in a pass, so that the same phase can
            write the state.
        store: Whether the phase writes the state of the last rows, and nothing else.
        channels: Elements of a row of the output.
        kernel: Taps of a channel.
    """

    shader = "states/short_convolution"

    act: str = choice()
    bias: bool = choice()
    gated: bool = choice()
    factors: tuple[tuple[int, float], ...] = choice()
    single: bool = choice()
    store: bool = choice()
    value: str = choice()
    channels: int
    kernel: int


def short_convolution(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    weight: BufferSlice,
    bias: BufferSlice | None,
    state: BufferSlice,
    *,
    spec: ConvolutionSpec,
    single: bool,
    label: str,
) -> list[Phase]:
    """Convolve the rows of a pass, and write the latest inputs of each sequence into its state.

    Args:
        ctx: Lowering context; its state holds the sequence and slot of each row.
        x: [rows, channels], or [rows, 3, channels] if gated.
        y: [rows, channels]; not the same buffer as x.
        weight: f32 [channels, kernel].
        bias: f32 [channels], or None.
        state: f32 [sequences, kernel, channels].
        spec: The convolution.
        single: Whether no sequence has more than one row in a pass.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    channels, kernel = spec.channels, spec.kernel
    ctx.need_values(f"{label}: x", x, ctx.max_rows * channels * (3 if spec.gated else 1))
    ctx.need_values(f"{label}: y", y, ctx.max_rows * channels)
    need_floats(f"{label}: weight", weight, channels * kernel)
    need_floats(f"{label}: state", state, channels * kernel)
    operands = {"current": ctx.state.step, "x": x, "state": state}
    work = Work(-(-channels // THREADS), 1)

    def record(variant: str, *, store: bool) -> ShortConvolutionRecord:
        return ShortConvolutionRecord(
            threads=THREADS,
            variant=variant,
            act="" if store else spec.activation or "",
            bias=bias is not None and not store,
            gated=spec.gated,
            factors=() if store else spec.factors,
            single=single and not store,
            store=store,
            value=ctx.values,
            channels=channels,
            kernel=kernel,
        )

    outer = {"weight": weight, "y": y, **({} if bias is None else {"bias": bias})}
    phases = [Phase(record("", store=False), {**operands, **outer}, work, label)]
    if not single:
        phases.append(Phase(record("store", store=True), operands, work, f"{label}.state"))
    return phases
