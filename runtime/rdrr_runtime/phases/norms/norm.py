"""Norms of vectors, out of place, in place, or added to the residual stream.

They are RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) and LayerNorm (Ba et al. 2016, arXiv
1607.06450). Plain RMSNorm, which other kernels can fuse, is called `rmsnorm` in explanations, and
`layer_norm` all other forms: centred, with a bias, without a weight, or with a weight for each
vector of a row.

normalize           y = norm(x)
normalize_in_place  x = norm(x)            for queries and keys, head by head
add_normalized      x = x + norm(r)        for norms after a block
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rdrr_device.buffers import BufferSlice

from rdrr_runtime.phases.context import OpContext, need_floats, need_multiple, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice


@dataclass(frozen=True, kw_only=True)
class NormRecord(Record):
    """Parameters of norm.wgsl.

    Attributes:
        mode: `out` (y = norm(x)), `in_place` (x = norm(x)) or `post` (x = x + norm(r)).
        width: Elements of a vector.
        per_row: Vectors of a token row.
        eps: Epsilon added to the mean square or the variance.
        offset: Number added to the weight; None without a weight.
        centred: Whether the mean is subtracted.
        gain: `none` (no weight), `shared` (one weight) or `each` (one for each vector of a row).
        bias: Whether a bias is added.
        scaled: For `post`: whether the sum is multiplied by a weight.
        factor: A further factor on it; None without.
    """

    shader = "norms/norm"
    general = True

    mode: str = choice()
    subgroups: bool = choice()
    value: str = choice()
    width: int
    per_row: int
    eps: float
    offset: float | None
    centred: bool = choice()
    gain: str = choice()
    bias: bool = choice()
    scaled: bool = choice()
    factor: float | None

    @property
    def name(self) -> str:
        """See `Record.name`; the form decides how it is called."""
        is_plain = self.gain == "shared" and not (self.centred or self.bias)
        return f"{'rmsnorm' if is_plain else 'layer_norm'}.{self.mode}"


@dataclass(frozen=True, kw_only=True)
class NormForm:
    """The form of a norm, and its weights.

    Attributes:
        width: Elements of a normalised vector, a multiple of 4.
        eps: Epsilon added to the mean square or the variance.
        per_row: Vectors of a token row.
        centred: Whether the mean is subtracted.
        weight: f32 [width], or [per_row, width] with `per_vector`; None for a factor of 1.
        bias: f32 of the same shape; None for no bias.
        offset: Number added to the weight (Gemma, Nemotron: 1).
        per_vector: Whether each vector of a row has its own weight and bias.
        scale: For `add_normalized` with a plain norm: a weight, f32 [1], and a number, which both
            multiply the sum; None for neither.
    """

    width: int
    eps: float
    per_row: int = 1
    centred: bool = False
    weight: BufferSlice | None = None
    bias: BufferSlice | None = None
    offset: float = 0.0
    per_vector: bool = False
    scale: tuple[BufferSlice, float] | None = None

    @property
    def gain(self) -> str:
        """The value of `NormRecord.gain`."""
        if self.weight is None:
            return "none"
        return "each" if self.per_vector else "shared"

    @property
    def vectors(self) -> dict[str, BufferSlice]:
        """The weights by the names of the shaders."""
        factor = None if self.scale is None else self.scale[0]
        vectors = {"weight": self.weight, "bias": self.bias, "factor": factor}
        return {name: vector for name, vector in vectors.items() if vector is not None}

    def record(self, ctx: OpContext, mode: str) -> NormRecord:
        """Return the parameters of the shader that computes the form, with the usual threads."""
        return NormRecord(
            threads=power_of_two(self.width // 4, 32, 256),
            mode=mode,
            subgroups=ctx.subgroups,
            value=ctx.values,
            width=self.width,
            per_row=self.per_row,
            eps=self.eps,
            offset=None if self.weight is None else self.offset,
            centred=self.centred,
            gain=self.gain,
            bias=self.bias is not None,
            scaled=self.scale is not None,
            factor=None if self.scale is None else self.scale[1],
        )


CANDIDATES = (32, 64, 128, 256, 512, 1024)
"""Threads of a workgroup, which normalises one vector."""


def normalize(
    ctx: OpContext,
    x: BufferSlice,
    y: BufferSlice,
    form: NormForm,
    *,
    single_row: bool = False,
    label: str,
) -> list[Phase]:
    """Normalise vectors: y = (x - m) / sqrt(mean((x - m)^2) + eps) * (offset + weight) + bias.

    m is mean(x) for centred norms, and 0 for others.

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


def normalize_in_place(
    ctx: OpContext, x: BufferSlice, form: NormForm, *, label: str
) -> list[Phase]:
    """Normalise vectors as `normalize` does, in place."""
    return _lower(ctx, "in_place", {"x": x}, form, False, label)


def add_normalized(
    ctx: OpContext, x: BufferSlice, r: BufferSlice, form: NormForm, *, label: str
) -> list[Phase]:
    """Normalise r and add it to the residual stream, x = x + norm(r), in two different buffers."""
    return _lower(ctx, "post", {"x": x, "r": r}, form, False, label)


def _lower(
    ctx: OpContext,
    mode: str,
    values: dict[str, BufferSlice],
    form: NormForm,
    single_row: bool,
    label: str,
) -> list[Phase]:
    need_multiple(f"{label}: width", form.width, 4)
    rows = 1 if single_row else ctx.max_rows
    for name, buffer in values.items():
        ctx.need_values(f"{label}: {name}", buffer, rows * form.per_row * form.width)
    vectors = form.vectors
    for name, buffer in vectors.items():
        size = form.width * (form.per_row if form.per_vector else 1)
        need_floats(f"{label}: {name}", buffer, 1 if name == "factor" else size)
    record = form.record(ctx, mode)
    name = f"norm {record.name} {form.per_row}x{form.width}, {rows} rows"
    tuning_key = ctx.workgroup_key(name, record.threads, CANDIDATES)
    record = replace(record, threads=tuning_key.used.workgroup)
    work = Work(form.per_row, None if single_row else 1)
    return [Phase(record, {**values, **vectors}, work, label, (tuning_key,))]
