"""RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467), in place or fused with a residual addition.

rms_norm             y = norm(x)
rms_norm_in_place    x = norm(x)            for queries and keys, head by head
post_norm_add        x = x + norm(r)        for Gemma's norms after a block
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True)
class NormTuning(Params):
    """Tuning parameters of rmsnorm.

    Attributes:
        workgroup: Threads of a workgroup, which normalises one vector; a power of two.
    """

    workgroup: int


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Record):
    """Parameters of rmsnorm.wgsl.

    Attributes:
        mode: `out` (y = norm(x)), `in_place` (x = norm(x)) or `post` (x = x + norm(r)).
        subgroups: Whether reductions use subgroup operations.
        value: Type of the activations, `f32` or `f16`.
        width: Elements of a vector.
        per_row: Vectors of a token row.
        eps: Epsilon added to the mean square.
        offset: Number added to the weight.
        scaled: For `post`: whether the sum is multiplied by a weight.
        factor: A further factor on it; None without.
    """

    shader = "norms/rmsnorm"

    mode: str = choice()
    subgroups: bool = choice()
    value: str = choice()
    width: int
    per_row: int
    eps: float
    offset: float
    scaled: bool = choice(default=False)
    factor: float | None = None


CANDIDATES = tuple(NormTuning(threads) for threads in (32, 64, 128, 256, 512, 1024))


def rms_norm(
    ctx: OpContext,
    x: BufferSlice,
    weight: BufferSlice,
    y: BufferSlice,
    *,
    width: int,
    eps: float,
    offset: float = 0.0,
    per_row: int = 1,
    single_row: bool = False,
    label: str,
) -> list[Phase]:
    """Normalise vectors: y = x / sqrt(mean(x^2) + eps) * (offset + weight).

    Args:
        ctx: Lowering context.
        x: [rows, per_row, width].
        weight: f32 [width].
        y: [rows, per_row, width]; not the same buffer as x.
        width: Elements of a normalised vector, a multiple of 4.
        eps: Epsilon added to the mean square.
        offset: Number added to the weight (Gemma: 1).
        per_row: Vectors of a token row.
        single_row: Whether x and y have one row, however many rows the pass has.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    operands = {"x": x, "weight": weight, "y": y}
    return _lower(ctx, "out", operands, width, eps, offset, per_row, single_row, label)


def rms_norm_in_place(
    ctx: OpContext,
    x: BufferSlice,
    weight: BufferSlice,
    *,
    width: int,
    eps: float,
    offset: float = 0.0,
    per_row: int = 1,
    label: str,
) -> list[Phase]:
    """Normalise vectors as `rms_norm` does, in place."""
    operands = {"x": x, "weight": weight}
    return _lower(ctx, "in_place", operands, width, eps, offset, per_row, False, label)


def post_norm_add(
    ctx: OpContext,
    x: BufferSlice,
    r: BufferSlice,
    weight: BufferSlice,
    *,
    width: int,
    eps: float,
    offset: float = 0.0,
    scale: tuple[BufferSlice, float] | None = None,
    label: str,
) -> list[Phase]:
    """Normalise r and add it to the residual stream, x = x + norm(r).

    Both are [rows, width], in two different buffers. `scale` is a weight, f32 [1], and a number,
    which both multiply the sum.
    """
    operands = {"x": x, "r": r, "weight": weight}
    if scale is None:
        return _lower(ctx, "post", operands, width, eps, offset, 1, False, label)
    operands["factor"] = scale[0]
    return _lower(ctx, "post", operands, width, eps, offset, 1, False, label, scale[1])


def _lower(
    ctx: OpContext,
    mode: str,
    operands: dict[str, BufferSlice],
    width: int,
    eps: float,
    offset: float,
    per_row: int,
    single_row: bool,
    label: str,
    factor: float | None = None,
) -> list[Phase]:
    need_multiple(f"{label}: width", width, 4)
    rows = 1 if single_row else ctx.max_rows
    for name, buffer in operands.items():
        count = {"weight": width, "factor": 1}.get(name, rows * per_row * width)
        is_weight = name in ("weight", "factor")
        (need_floats if is_weight else ctx.need_values)(f"{label}: {name}", buffer, count)
    tuning_key = ctx.tuning_key(
        f"norm rmsnorm.{mode} {per_row}x{width}, {rows} rows",
        NormTuning(power_of_two(width // 4, 32, 256)),
        (candidate for candidate in CANDIDATES if candidate.workgroup <= ctx.max_threads),
    )
    record = RmsNorm(
        threads=tuning_key.used.workgroup,
        variant=mode,
        mode=mode,
        subgroups=ctx.subgroups,
        value=ctx.values,
        width=width,
        per_row=per_row,
        eps=eps,
        offset=offset,
        scaled=factor is not None,
        factor=factor,
    )
    work = Work(per_row, None if single_row else 1)
    return [Phase(record, operands, work, label, (tuning_key,))]
