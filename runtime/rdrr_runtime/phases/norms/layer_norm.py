"""LayerNorm (Ba et al. 2016, arXiv 1607.06450), and RMSNorm in forms that `rmsnorm` lacks.

The forms are: centred, with a bias, without a weight, and with a weight for each vector of a row.
`rmsnorm` is the faster path of plain RMSNorm, which other kernels can fuse.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True)
class LayerNormTuning(Params):
    """Tuning parameters of layer_norm.

    Attributes:
        workgroup: Threads of a workgroup, which normalises one vector; a power of two.
    """

    workgroup: int


@dataclass(frozen=True, kw_only=True)
class LayerNormRecord(Record):
    """Parameters of layer_norm.wgsl.

    Attributes:
        mode: `out` (y = norm(x)), `in_place` (x = norm(x)) or `post` (x = x + norm(r)).
        centred: Whether the mean is subtracted.
        gain: `none` (no weight), `shared` (one weight) or `each` (one for each vector of a row).
        bias: Whether a bias is added.
        subgroups: Whether reductions use subgroup operations.
        value: Type of the activations, `f32` or `f16`.
        width: Elements of a vector.
        per_row: Vectors of a token row.
        eps: Epsilon added to the variance.
        offset: Number added to the weight; None without a weight.
    """

    shader = "norms/layer_norm"

    mode: str = choice()
    centred: bool = choice()
    gain: str = choice()
    bias: bool = choice()
    subgroups: bool = choice()
    value: str = choice()
    width: int
    per_row: int
    eps: float
    offset: float | None


@dataclass(frozen=True, kw_only=True)
class NormForm:
    """The form of a norm, and its weights.

    Attributes:
        width: Elements of a normalised vector, a multiple of 4.
        eps: Epsilon added to the variance.
        per_row: Vectors of a token row.
        centred: Whether the mean is subtracted.
        weight: f32 [width], or [per_row, width] with `per_vector`; None for a factor of 1.
        bias: f32 of the same shape; None for no bias.
        offset: Number added to the weight (Nemotron: 1).
        per_vector: Whether each vector of a row has its own weight and bias.
    """

    width: int
    eps: float
    per_row: int = 1
    centred: bool = True
    weight: BufferSlice | None = None
    bias: BufferSlice | None = None
    offset: float = 0.0
    per_vector: bool = False

    @property
    def gain(self) -> str:
        """The value of `LayerNormRecord.gain`."""
        if self.weight is None:
            return "none"
        return "each" if self.per_vector else "shared"


CANDIDATES = tuple(LayerNormTuning(threads) for threads in (32, 64, 128, 256, 512, 1024))


def layer_norm(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    form: NormForm,
    *,
    single_row: bool = False,
    label: str,
) -> list[Phase]:
    """Normalise vectors: y = (x - mean(x)) / sqrt(var(x) + eps) * (offset + weight) + bias.

    Args:
        ctx: Lowering context.
        x: [rows, per_row, width].
        y: [rows, per_row, width]; not the same buffer as x.
        form: The form of the norm.
        single_row: Whether x and y have one row, however many rows the pass has.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The kernel does not support a size, or a buffer is too small.
    """
    return _lower(ctx, "out", {"x": x, "y": y}, form, single_row, label)


def layer_norm_in_place(
    ctx: OpContext, x: BufferSlice, form: NormForm, *, label: str
) -> list[Phase]:
    """Normalise vectors as `layer_norm` does, in place."""
    return _lower(ctx, "in_place", {"x": x}, form, False, label)


def layer_norm_add(
    ctx: OpContext, x: BufferSlice, r: BufferSlice, form: NormForm, *, label: str
) -> list[Phase]:
    """Normalise r and add it to the residual stream, x = x + norm(r), in two different buffers."""
    return _lower(ctx, "post", {"x": x, "r": r}, form, False, label)


def _lower(
    ctx: OpContext,
    mode: str,
    operands: dict[str, BufferSlice],
    form: NormForm,
    single_row: bool,
    label: str,
) -> list[Phase]:
    need_multiple(f"{label}: width", form.width, 4)
    rows = 1 if single_row else ctx.max_rows
    for name, buffer in operands.items():
        ctx.need_values(f"{label}: {name}", buffer, rows * form.per_row * form.width)
    vectors = {"weight": form.weight, "bias": form.bias}
    held = {name: buffer for name, buffer in vectors.items() if buffer is not None}
    for name, buffer in held.items():
        size = form.width * (form.per_row if form.per_vector else 1)
        need_floats(f"{label}: {name}", buffer, size)
    tuning_key = ctx.tuning_key(
        f"norm layer_norm.{mode} {form.per_row}x{form.width}, {rows} rows",
        LayerNormTuning(power_of_two(form.width // 4, 32, 256)),
        (candidate for candidate in CANDIDATES if candidate.workgroup <= ctx.max_threads),
    )
    record = LayerNormRecord(
        threads=tuning_key.used.workgroup,
        variant=mode,
        mode=mode,
        centred=form.centred,
        gain=form.gain,
        bias=form.bias is not None,
        subgroups=ctx.subgroups,
        value=ctx.values,
        width=form.width,
        per_row=form.per_row,
        eps=form.eps,
        offset=None if form.weight is None else form.offset,
    )
    work = Work(form.per_row, None if single_row else 1)
    return [Phase(record, {**operands, **held}, work, label, (tuning_key,))]
