"""Elementwise ops in place: residual addition, softcap of logits, multiplication by constants.

Also the conversion of a row in fixed point, which another buffer receives.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats
from rdrr_runtime.phases.phase import Phase, Record, Work, choice

THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Elementwise(Record):
    """Parameters of elementwise.wgsl.

    Attributes:
        op: `add`, `converted`, `softcap`, `scale`, `gain` or `bias`.
        x_value: Type of x: the type of the activations, or f32 for logits.
        width: Elements of a row.
        factor: The cap for `softcap`, else the factor.
        gains: For `gain` and `bias`: elements of the weight, 1 or `width`.
    """

    shader = "rows/elementwise"

    op: str = choice()
    value: str = choice()
    x_value: str = choice()
    width: int
    factor: float
    gains: int | None = None


def residual_add(
    ctx: OpContext,
    x: BufferSlice,
    r: BufferSlice,
    *,
    width: int,
    factor: float = 1.0,
    label: str,
) -> list[Phase]:
    """Add a residual, x = x + factor * r; both are [rows, width] in two different buffers."""
    return _in_place(
        ctx, "add", {"x": x, "r": r}, width, factor, single_row=False, logits=False, label=label
    )


def converted(
    ctx: OpContext, x: BufferSlice, r: BufferSlice, *, width: int, label: str
) -> list[Phase]:
    """Convert a row r in fixed point, see products/snippets/down.wgsl, to values x [width]."""
    return _in_place(
        ctx, "converted", {"x": x, "r": r}, width, 1.0, single_row=False, logits=False, label=label
    )


def softcap(
    ctx: OpContext, x: BufferSlice, *, width: int, cap: float, single_row: bool = False, label: str
) -> list[Phase]:
    """Cap logits, x = cap * tanh(x / cap), f32 [rows, width] (one row with `single_row`)."""
    return _in_place(
        ctx, "softcap", {"x": x}, width, cap, single_row=single_row, logits=True, label=label
    )


def scale(
    ctx: OpContext,
    x: BufferSlice,
    *,
    width: int,
    factor: float,
    single_row: bool = False,
    logits: bool = False,
    label: str,
) -> list[Phase]:
    """Multiply by a constant, x = factor * x.

    x is [rows, width], or one row with `single_row`, of the type of the activations, or f32 with
    `logits`.
    """
    return _in_place(
        ctx, "scale", {"x": x}, width, factor, single_row=single_row, logits=logits, label=label
    )


def gain(
    ctx: OpContext,
    x: BufferSlice,
    weight: BufferSlice,
    *,
    width: int,
    count: int,
    factor: float,
    label: str,
) -> list[Phase]:
    """Multiply by a weight and a constant, x = factor * weight * x.

    Args:
        ctx: Lowering context.
        x: [rows, width].
        weight: f32 [count].
        width: Elements of a row.
        count: Elements of the weight: `width`, or 1 for the same factor on all elements.
        factor: Further factor.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: A buffer is too small.
    """
    return _with_vector(ctx, "gain", x, weight, width, count, factor, label)


def add_bias(
    ctx: OpContext, x: BufferSlice, bias: BufferSlice, *, width: int, label: str
) -> list[Phase]:
    """Add a vector, x = x + bias; x is [rows, width], the bias f32 [width]."""
    return _with_vector(ctx, "bias", x, bias, width, width, 1.0, label)


def _with_vector(
    ctx: OpContext,
    op: str,
    x: BufferSlice,
    weight: BufferSlice,
    width: int,
    count: int,
    factor: float,
    label: str,
) -> list[Phase]:
    ctx.need_values(f"{label}: x", x, ctx.max_rows * width)
    need_floats(f"{label}: weight", weight, count)
    record = Elementwise(
        threads=THREADS,
        variant=op,
        op=op,
        value=ctx.values,
        x_value=ctx.values,
        width=width,
        factor=factor,
        gains=count,
    )
    return [Phase(record, {"x": x, "weight": weight}, Work(-(-width // THREADS), 1), label)]


def _in_place(
    ctx: OpContext,
    op: str,
    operands: dict[str, BufferSlice],
    width: int,
    factor: float,
    *,
    single_row: bool,
    logits: bool,
    label: str,
) -> list[Phase]:
    rows = 1 if single_row else ctx.max_rows
    need = need_floats if logits else ctx.need_values
    for name, buffer in operands.items():
        need(f"{label}: {name}", buffer, rows * width)
    threads = ctx.threads(THREADS)
    record = Elementwise(
        threads=threads,
        variant=op,
        op=op,
        value=ctx.values,
        x_value="f32" if logits else ctx.values,
        width=width,
        factor=factor,
    )
    work = Work(-(-width // threads), None if single_row else 1)
    return [Phase(record, operands, work, label)]
