"""The plan of a conversion: type, layout, size and byte spans of every output tensor, with reasons.

Planning reads no weight and writes nothing, so `--dry-run` prints exactly what a conversion does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType

from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.layouts import Geometry, Layout, geometry
from rdrr_format.shards import ShardSpan, align_up, plan_spans
from rdrr_manifests.graph.names import GATE_UP, PAIRS

from rdrr_converter.checkpoint.magnitudes import Magnitudes
from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.importance import Importance, ImportanceMatrix
from rdrr_converter.lost_lines import LineCheck
from rdrr_converter.options import PackageOptions
from rdrr_converter.overrides import Override, check_all_used, find_override, parse_overrides
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.reading.model import SourceModel
from rdrr_converter.recipes import choose_dtype, choose_tail_dtype, holds
from rdrr_converter.source_types import kept_dtype

MATMULS = ("matmul", "lm_head", "expert")
"""Roles of weights that multiply activations and that may therefore be transposed."""


@dataclass(frozen=True)
class ChosenType:
    """A type that was chosen for a single tensor.

    Attributes:
        dtype: The type.
        why: The reason.
    """

    dtype: DType
    why: str


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the package.

    Attributes:
        name: Name in the package.
        sources: The source tensors of its values; two of them are concatenated along N.
        role: Role in the manifest.
        group: Group in the manifest.
        shape: Logical shape.
        dtype: Storage type.
        layout: Layout in storage.
        why: Reason for the type.
        spans: Byte spans in the shards.
        overflowed: Whether it is kept in F32 because a value does not fit the requested type.
        quality: Value of the option `quality`, which selects the search for block parameters.
        importance: Importance of the rows and columns of each source; empty if unknown.
    """

    name: str
    sources: tuple[SourceTensor, ...]
    role: str
    group: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout
    why: str
    spans: tuple[ShardSpan, ...] = ()
    overflowed: bool = False
    quality: str = "ref"
    importance: tuple[Importance, ...] = field(default=(), compare=False, repr=False)

    @property
    def geometry(self) -> Geometry:
        """Number of stored rows and their size."""
        return geometry(self.dtype, self.shape, self.layout)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.geometry.size

    @property
    def weights(self) -> int:
        """Number of weights without padding."""
        return prod(self.shape)

    @property
    def is_copied(self) -> bool:
        """Whether the blocks of the source are copied bit for bit."""
        return (
            self.dtype.is_block
            and self.layout is Layout.ROW
            and all(part.is_block and part.dtype == self.dtype.name for part in self.sources)
        )

    @property
    def dequantized_from(self) -> tuple[str, ...]:
        """Block types of the source that are dequantized; empty if blocks are copied."""
        if self.is_copied:
            return ()
        return tuple(sorted({part.dtype for part in self.sources if part.is_quantized}))

    @property
    def is_searched(self) -> bool:
        """Whether its encoding weighs the columns by their importance, if that is known."""
        codec = CODECS[self.dtype.name]
        takes = codec.takes_importance or (codec.refiner is not None and self.quality == "best")
        return takes and not self.is_copied

    @property
    def is_matmul(self) -> bool:
        """Whether it multiplies activations, and may therefore be transposed."""
        return self.role in MATMULS


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion will write.

    Attributes:
        tensors: Output tensors in storage order, with their byte spans.
        shard_sizes: Size of each shard in bytes.
    """

    tensors: tuple[PlannedTensor, ...]
    shard_sizes: tuple[int, ...]

    @property
    def total_size(self) -> int:
        """Size of all shards in bytes."""
        return sum(self.shard_sizes)

    @property
    def weights_transposed(self) -> bool:
        """Whether every matmul weight is in the column layout."""
        return all(t.layout is Layout.COLUMN for t in self.tensors if t.is_matmul)

    def source_notes(self) -> tuple[str, ...]:
        """Return notes on how a source that is already quantized is stored."""
        copied = sum(tensor.is_copied for tensor in self.tensors)
        decoded = Counter(
            (" and ".join(tensor.dequantized_from), tensor.dtype.name)
            for tensor in self.tensors
            if tensor.dequantized_from
        )
        notes = [f"{_count(copied)}: blocks copied from the source bit for bit"] if copied else []
        for (before, after), count in sorted(decoded.items()):
            again = "dequantized and quantized again as" if DTYPES[after].is_block else "stored as"
            notes.append(f"{_count(count)}: {before} in the source, {again} {after}")
        return tuple(notes)

    def importance_notes(self, matrix: ImportanceMatrix) -> tuple[str, ...]:
        """Return notes on how many tensors used a matrix and which had no entry in it."""
        searched = [tensor for tensor in self.tensors if tensor.is_searched]
        missing = [tensor.name for tensor in searched if not tensor.importance]
        count = len(searched) - len(missing)
        notes = [f"{count} of {len(searched)} tensors were quantized with the importance matrix"]
        if missing:
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            notes.append(f"{matrix.path.name} has no entry for {some}")
        return tuple(notes)

    def describe(self) -> Iterator[dict[str, object]]:
        """Yield one row per tensor, for `--dry-run`."""
        for tensor in self.tensors:
            yield {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                "layout": tensor.layout.value,
                "size": tensor.size,
                "shard": tensor.spans[0].shard_index if tensor.spans else 0,
                "offset": tensor.spans[0].offset if tensor.spans else 0,
                "why": tensor.why,
            }


def _count(tensors: int) -> str:
    return f"{tensors} tensor" + ("s" if tensors != 1 else "")


def make_plan(
    model: SourceModel,
    options: PackageOptions,
    magnitudes: Mapping[str, Magnitudes],
    matrix: ImportanceMatrix | None = None,
    types: Mapping[str, ChosenType] = MappingProxyType({}),
) -> ConversionPlan:
    """Plan every output tensor of a conversion.

    Args:
        model: The model that the checkpoint holds.
        options: Checked options.
        magnitudes: Largest absolute values of each source tensor, by its name in the source.
        matrix: Importance matrix for the quantization, if there is one.
        types: Types of tensors of the package, by name, that go before those of the recipe.

    Raises:
        UsageError: A fused tensor would have a block with weights of both matrices, or a
            pattern of `--tensor-type` matches no tensor.
        SourceError: The importance matrix belongs to another model.
        ConversionError: Gate and up cannot be fused.
    """
    tensors: list[PlannedTensor] = []
    overrides = parse_overrides(options.tensor_types)
    check = LineCheck(magnitudes, _by_layer(model.tensors), model.sizes.head_dim)
    for parts, name in _outputs(model, fuse=options.fuse_gate_up):
        tensor = _decide(parts, name, model, options, overrides, types.get(name))
        if len(parts) > 1 and tensor.layout is Layout.FLAT:
            _check_flat_fusion(parts[0], tensor)
        tensor = _append_source_to_reason(_avoid_loss(tensor, parts, options, check))
        if matrix is not None and (tensor.dtype.is_block or name in types):
            importance = _importance(parts, tensor.layout, matrix, tied=model.tied)
            tensor = replace(tensor, importance=importance)
        tensors.append(tensor)
    check_all_used(overrides, {tensor.name: tensor.role for tensor in tensors})
    return _assign_spans(tensors, options.shard_size, options.align)


def _by_layer(tensors: Sequence[ModelTensor]) -> dict[int | None, list[ModelTensor]]:
    layers: dict[int | None, list[ModelTensor]] = {}
    for tensor in tensors:
        layers.setdefault(tensor.layer, []).append(tensor)
    return layers


def _append_source_to_reason(tensor: PlannedTensor) -> PlannedTensor:
    """Return the tensor with a remark on its source appended to its reason."""
    reasons = [tensor.why, *sorted({part.note for part in tensor.sources if part.note})]
    if tensor.is_copied:
        reasons.append("blocks of the source copied")
    elif tensor.dequantized_from:
        reasons.append(f"{' and '.join(tensor.dequantized_from)} in the source")
    return replace(tensor, why="; ".join(reasons))


def _assign_spans(tensors: Sequence[PlannedTensor], shard_size: int, align: int) -> ConversionPlan:
    """Assign each tensor its byte spans in the stream that `ShardWriter` splits into shards."""
    placed = []
    position = 0
    for tensor in tensors:
        start = align_up(position, align)
        placed.append(replace(tensor, spans=plan_spans(start, tensor.size, shard_size)))
        position = start + tensor.size
    whole, rest = divmod(position, shard_size)
    return ConversionPlan(tuple(placed), (shard_size,) * whole + ((rest,) if rest else ()))


def _outputs(model: SourceModel, *, fuse: bool) -> Iterator[tuple[tuple[ModelTensor, ...], str]]:
    """Yield the sources and the name of every output tensor."""
    by_name = {tensor.name: tensor for tensor in model.tensors}
    ups = _fused_pairs(by_name) if fuse else {}
    replaced = set(ups.values())
    for tensor in model.tensors:
        if tensor.name in ups:
            stem = tensor.name.rpartition(".weight")[0].rpartition(".")[0]
            yield (tensor, by_name[ups[tensor.name]]), f"{stem}.{GATE_UP}.weight"
        elif tensor.name not in replaced:
            yield (tensor,), tensor.name


def _fused_pairs(by_name: Mapping[str, ModelTensor]) -> dict[str, str]:
    """Return the name of each gate projection's up projection: of layers, experts, shared experts.

    Raises:
        ConversionError: There are none, or some have biases.
    """
    pairs = {}
    for gate, up, _ in PAIRS:
        for name in by_name:
            stem = name.removesuffix(f".{gate}.weight")
            if stem == name or f"{stem}.{up}.weight" not in by_name:
                continue
            if f"{stem}.{gate}.bias" in by_name:
                raise ConversionError(
                    "gate and up have biases, which a fused matrix cannot hold",
                    hint="convert without `fuse_gate_up`",
                )
            pairs[name] = f"{stem}.{up}.weight"
    if not pairs:
        raise ConversionError(
            "the feed-forward network has no gate to be fused",
            hint="convert without `fuse_gate_up`",
        )
    return pairs


def _decide(
    parts: Sequence[ModelTensor],
    name: str,
    model: SourceModel,
    options: PackageOptions,
    overrides: Sequence[Override],
    chosen: ChosenType | None,
) -> PlannedTensor:
    first = parts[0]
    dtype, why = _choose(parts, name, model, options, overrides, chosen)
    shape = first.shape
    if len(parts) > 1:
        shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    layout = Layout.ROW
    if first.role in MATMULS:
        layout = options.block_layout if dtype.is_block else _scalar_layout(options)
    dtype, tail = choose_tail_dtype(dtype, shape, layout, options.k_tail or "pad")
    if not dtype.is_block and layout is not Layout.ROW:
        layout = _scalar_layout(options)
    return PlannedTensor(
        name=name,
        sources=tuple(part.source for part in parts),
        role=first.role,
        group=first.group,
        shape=shape,
        dtype=dtype,
        layout=layout,
        why=tail or why,
        quality=options.quality,
    )


def _choose(
    parts: Sequence[ModelTensor],
    name: str,
    model: SourceModel,
    options: PackageOptions,
    overrides: Sequence[Override],
    chosen: ChosenType | None,
) -> tuple[DType, str]:
    """Choose the type by the user's patterns, the source or the recipe; return it with a reason."""
    first = parts[0]
    override = find_override(overrides, name, first.role)
    if override is not None:
        return override.dtype, f"--tensor-type {override}"
    if chosen is not None:
        return chosen.dtype, chosen.why
    sources = [part.source for part in parts]
    kept = kept_dtype(sources, first.role, options, model.source_kind)
    if kept is not None:
        return kept, "as in the source"
    sizes = model.sizes
    return choose_dtype(
        options.recipe,
        first.role,
        name,
        first.layer,
        sizes.num_layers,
        tied=model.tied,
        experts=model.moe.num_experts if model.moe else 0,
        grouped=sizes.num_key_value_heads < sizes.num_attention_heads,
    )


def _importance(
    parts: Sequence[ModelTensor], layout: Layout, matrix: ImportanceMatrix, *, tied: bool
) -> tuple[Importance, ...]:
    """Return the importance of each part; empty unless all have that along their blocks."""
    by_part = [matrix.of(part.name, part.shape, tied=tied) for part in parts]
    known = tuple(
        part for part in by_part if part and (layout is not Layout.COLUMN or part.rows is not None)
    )
    return known if len(known) == len(parts) else ()


def _scalar_layout(options: PackageOptions) -> Layout:
    return Layout.COLUMN if options.transpose_weights else Layout.ROW


def _check_flat_fusion(gate: ModelTensor, fused: PlannedTensor) -> None:
    elements = gate.shape[0] * gate.shape[1]
    if elements % fused.dtype.block_elements:
        raise UsageError(
            "`fuse_gate_up` with `q4k_layout` flat would put weights of gate and up into one block",
            expected=f"a multiple of {fused.dtype.block_elements} weights in {gate.name}",
            found=elements,
            hint="use `q4k_layout` row",
        )


def _avoid_loss(
    tensor: PlannedTensor,
    parts: Sequence[ModelTensor],
    options: PackageOptions,
    check: LineCheck,
) -> PlannedTensor:
    """Return the tensor, changed to F32 if its type would lose values of one of its parts.

    Args:
        tensor: The tensor.
        parts: The tensors of the model in it: a fused gate and up may differ.
        options: Checked options.
        check: Finds rows and columns that a type would lose.
    """
    is_exact = all(part.dtype == tensor.dtype.name for part in tensor.sources)
    reasons = [_misfit(part, tensor, check, is_exact=is_exact) for part in parts]
    why = next((reason for reason in reasons if reason is not None), None)
    if why is None:
        return tensor
    return replace(
        tensor,
        dtype=DTYPES["F32"],
        layout=_scalar_layout(options) if tensor.is_matmul else Layout.ROW,
        why=f"{why} not fit {tensor.dtype}: kept in F32",
        overflowed=True,
    )


def _misfit(
    part: ModelTensor, tensor: PlannedTensor, check: LineCheck, *, is_exact: bool
) -> str | None:
    """Return the beginning of a sentence about values of a part that the tensor's type loses."""
    largest = check.magnitudes[part.source.name].largest
    if not holds(tensor.dtype, largest, is_exact=is_exact):
        return f"a value of {largest:.6g} does"
    lines = None if is_exact else check.find(part, tensor.dtype, tensor.layout)
    return None if lines is None else f"{lines} do"
