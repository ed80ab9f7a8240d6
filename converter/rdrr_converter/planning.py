"""Planning: from a model and options to the plan of its conversion.

It reads no weight and writes nothing, so `--dry-run` prints exactly what a conversion does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.layouts import Layout
from rdrr_format.shards import align_up, plan_spans
from rdrr_manifests.graph.names import GATE_UP, PAIRS

from rdrr_converter.checkpoint.magnitudes import Magnitudes
from rdrr_converter.importance import Importance, ImportanceMatrix
from rdrr_converter.lost_lines import LineCheck
from rdrr_converter.options import PackageOptions
from rdrr_converter.overrides import Override, check_all_used, find_override, parse_overrides
from rdrr_converter.plan import MATMULS, ChosenType, ConversionPlan, PlannedTensor
from rdrr_converter.reading.matching import VISION_GROUP, ModelTensor
from rdrr_converter.reading.model import SourceModel
from rdrr_converter.recipes import RECIPES, choose_dtype, choose_tail_dtype, holds
from rdrr_converter.source_types import kept_dtype


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
        quality=options.search,
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
    if first.group == VISION_GROUP:
        recipe = RECIPES[options.vision_quantize or "f16"]
        return choose_dtype(recipe, first.role, name, None, 0, tied=False)
    sources = [part.source for part in parts]
    unchanged = kept_dtype(sources, first.role, options, model.source_kind)
    if unchanged is not None:
        return unchanged, "as in the source"
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
        causal=model.inference.attention.causal,
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
