"""Building the manifest of a planned package.

Nothing in the manifest depends on the clock, the machine or the number of workers.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rdrr_format.errors import ConversionError, UsageError
from rdrr_format.layouts import Layout
from rdrr_format.shards import ShardInfo
from rdrr_manifests.doppler import obstacles, with_execution_graph
from rdrr_manifests.models import (
    Conversion,
    KernelHints,
    Manifest,
    Optimizations,
    QuantizationInfo,
    Shard,
    Span,
    Tensor,
)
from rdrr_manifests.profiles import DOPPLER

import rdrr_converter
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.options import PackageOptions
from rdrr_converter.output.groups import describe_experts
from rdrr_converter.output.recorded_options import recorded_options
from rdrr_converter.plan import ConversionPlan, PlannedTensor
from rdrr_converter.reading.matching import VISION_GROUP
from rdrr_converter.reading.model import SourceModel
from rdrr_converter.recipes import PROFILES
from rdrr_converter.tokenizer.files import TOKENIZER_JSON, describe_tokenizer, eos_token_ids

COMPUTE = "f32"
"""`quantizationInfo.compute`: the data type of activations unless a hint says otherwise."""

PER_LAYER_TABLE = "embed_tokens_per_layer.weight"
"""The end of the name of the table of embeddings that each layer has of its own."""


def build_manifest(
    source: Source,
    model: SourceModel,
    plan: ConversionPlan,
    options: PackageOptions,
    shards: Sequence[ShardInfo],
    groups: Mapping[str, object] | None = None,
) -> tuple[Manifest, tuple[str, ...]]:
    """Build the manifest, and notes on what the checkpoint lacks.

    Args:
        source: The checkpoint.
        model: The model that it holds.
        plan: The plan of the package.
        options: Options of the package.
        shards: The finished shards; empty in a dry run.
        groups: The manifest's `groups`; None to omit the field.

    Raises:
        SourceError: A file of the tokenizer is invalid.
        UsageError: SOURCE_DATE_EPOCH is not a number of seconds.
        ConversionError: The runtime of the profile cannot run the model.
    """
    tokenizer, notes = describe_tokenizer(source)
    eos = eos_token_ids(source)
    if eos is None and model.inference.attention.causal:
        notes = (*notes, "no eos_token_id: generation stops only at its limit")
    manifest = Manifest(
        model_id=options.model_id or default_model_id(source),
        model_type=_model_type(model),
        quantization=_type_labels(plan.tensors, options)[0],
        quantization_info=quantization_info(plan, options),
        hash_algorithm=options.hash_algorithm,
        eos_token_id=eos,
        mask_token_id=model.mask_token_id,
        weights_transposed=plan.weights_transposed,
        architecture=model.sizes,
        moe_config=None if model.moe is None else describe_experts(model.moe, plan),
        inference=model.inference,
        tokenizer=tokenizer,
        processor=model.tower.processor,
        vision=model.tower.block,
        optimizations=Optimizations(kernel_hints=KernelHints(**dict(options.kernel_hints))),
        conversion=Conversion(
            tool="rdrr", version=rdrr_converter.__version__, options=recorded_options(options)
        ),
        metadata=_metadata(source, model),
        total_size=sum(shard.size for shard in shards) if shards else plan.total_size,
        groups=groups,
        shards=tuple(_shard(shard) for shard in shards),
        tensors={tensor.name: _tensor(tensor) for tensor in plan.tensors},
    )
    return _for_profile(manifest, options.profile), notes


def _for_profile(manifest: Manifest, profile: str) -> Manifest:
    """Add what the runtime of a profile needs; refuse a model that it would compute wrongly."""
    if profile != DOPPLER:
        return manifest
    faults = list(obstacles(manifest))
    if faults:
        first, more = faults[0], len(faults) - 1
        raise ConversionError(
            f"DOPPLER cannot run this model: {first.message}",
            where=first.field,
            expected=first.expected,
            found=first.found,
            hint=f"omit the profile {DOPPLER}" + (f" ({more} more reasons)" if more else ""),
        )
    return with_execution_graph(manifest)


def _model_type(model: SourceModel) -> str:
    """Return what the model computes, in the words of the public format."""
    is_embedding = model.inference.output.embedding_postprocessor is not None
    return "embedding" if is_embedding else "transformer"


def default_model_id(source: Source) -> str:
    """Derive a model id from the name of the checkpoint's folder, file or hub repository."""
    # A file is not resolved, because in the hub's cache it is a link to a file named by its hash.
    path = source.path if source.path.is_file() else source.path.resolve()
    name = path.stem if path.is_file() else path.name
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        name = path.parent.parent.name.rsplit("--", 1)[-1]
    cleaned = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")
    return cleaned[:64].rstrip("-_") or "model"


def quantization_info(plan: ConversionPlan, options: PackageOptions) -> QuantizationInfo:
    """Summarize the storage types of the weights in the short names of the public format."""
    _, weights = _type_labels(plan.tensors, options)
    # The first embedding is that of the tokens; some models have a table for the layers after it.
    by_role = {tensor.role: _short_name(tensor) for tensor in reversed(plan.tensors)}
    of_tower = (t for t in plan.tensors if t.group == VISION_GROUP and t.is_matmul)
    of_layers = (table for table in plan.tensors if table.name.endswith(PER_LAYER_TABLE))
    embeddings, head = by_role["embedding"], by_role.get("lm_head")
    layout = "col" if _is_column(plan, options) else "row"
    parts = [weights]
    # Roles that are stored in the type of the weights are not mentioned. A head that shares its
    # type or its tensor with the embedding is mentioned together with it.
    if head in (None, embeddings):
        parts += [f"eh{embeddings}"] if embeddings != weights else []
    else:
        parts += [f"e{embeddings}"] if embeddings != weights else []
        parts += [f"h{head}"] if head != weights else []
    tag = "-".join([*parts, f"a{COMPUTE}"]) + ("-col" if layout == "col" else "")
    return QuantizationInfo(
        weights=weights,
        embeddings=embeddings,
        lm_head=head,
        per_layer_embeddings=next((_short_name(table) for table in of_layers), None),
        vision=next(map(_short_name, of_tower), None),
        compute=COMPUTE,
        layout=layout,
        variant_tag=tag,
    )


def _type_labels(tensors: Iterable[PlannedTensor], options: PackageOptions) -> tuple[str, str]:
    """Return the manifest's `quantization` and the short name of the weights' type.

    Where types are kept or chosen, they are those of the recipe whose type most weights have, or
    the name of that type if there is no such recipe.
    """
    recipe = options.recipe
    if options.quantize is not None and not (
        options.size or options.bits_per_weight or options.plan
    ):
        return recipe.label, recipe.short_name
    weights: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.is_matmul and tensor.group != VISION_GROUP:
            weights[tensor.dtype.name] += tensor.weights
    name = weights.most_common(1)[0][0] if weights else recipe.weights
    for recipe in PROFILES[options.profile].values():
        if recipe.weights == name:
            return recipe.label, recipe.short_name
    return name, name.lower().replace("_k", "k")


def _is_column(plan: ConversionPlan, options: PackageOptions) -> bool:
    blocks = [tensor for tensor in plan.tensors if tensor.is_matmul and tensor.dtype.is_block]
    return options.transpose_weights or any(t.layout is Layout.COLUMN for t in blocks)


def _short_name(tensor: PlannedTensor) -> str:
    name = tensor.dtype.name.lower()
    return name.replace("_k", "k")


def _metadata(source: Source, model: SourceModel) -> dict[str, object]:
    metadata: dict[str, object] = {
        "source": "rdrr",
        "sourceFormat": source.kind,
        "sourceArchitecture": model.name,
        "hasTokenizer": source.content(TOKENIZER_JSON) is not None,
    }
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        try:
            stamp = datetime.fromtimestamp(int(epoch), UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise UsageError(
                "SOURCE_DATE_EPOCH is not a valid time", expected="seconds since 1970", found=epoch
            ) from error
        metadata["convertedAt"] = stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
    return metadata


def _shard(shard: ShardInfo) -> Shard:
    return Shard(
        index=shard.index,
        filename=shard.filename,
        size=shard.size,
        hash=shard.hash,
        offset=shard.offset,
        compression=shard.compression,
        uncompressed_size=shard.uncompressed_size,
    )


def _tensor(tensor: PlannedTensor) -> Tensor:
    spans = tuple(
        Span(shard_index=span.shard_index, offset=span.offset, size=span.size)
        for span in tensor.spans
    )
    is_single = len(spans) == 1
    is_transposed = tensor.layout is Layout.COLUMN
    return Tensor(
        shape=tensor.shape,
        dtype=tensor.dtype.manifest_name,
        size=tensor.size,
        role=tensor.role,
        shard=spans[0].shard_index if is_single else None,
        offset=spans[0].offset if is_single else None,
        spans=None if is_single else spans,
        group=tensor.group,
        layout=tensor.layout.value if tensor.dtype.is_block or is_transposed else None,
        original_shape=tensor.shape if is_transposed and not tensor.dtype.is_block else None,
    )
