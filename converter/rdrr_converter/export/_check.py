"""Checks that a configuration describes exactly the model and the tensors of a package.

The configuration is read like that of any checkpoint. Nothing is exported unless the graph derived
from it equals the graph of the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

from rdrr_format.errors import ConversionError, RdrrError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.logical import HEAD, LogicalTensor
from rdrr_manifests.models import Inference, Manifest
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule
from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.matching import required_names
from rdrr_converter.reading.model import SourceModel, read_model


def check_config(
    config: Mapping[str, Any],
    manifest: Manifest,
    rule: ArchitectureRule,
    tensors: Sequence[LogicalTensor],
    where: str,
) -> SourceModel:
    """Read a configuration like a checkpoint's, and compare its graph with the package's.

    Args:
        config: Content of `config.json`.
        manifest: The manifest of the package, or what of it the configuration has to describe.
        rule: Architecture of the configuration.
        tensors: The package's tensors.
        where: The package, for messages.

    Returns:
        The model that the configuration describes.

    Raises:
        ConversionError: The configuration does not describe the package's model.
    """
    manifest = manifest.model_copy(update={"vision": None})  # exports have the text model only
    source = Source(
        path=Path(where),
        kind="package",
        config=config,
        tensors={logical.name: _placeholder(logical) for logical in tensors},
    )
    try:
        model = read_model(source, rule)
    except RdrrError as error:
        raise _not_exportable(rule, error) from error
    names = [tensor.name for tensor in tensors]
    read: dict[str, object] = {
        "architecture": model.sizes,
        "inference": _with_modules(model.inference, manifest),
        "moe_config": model.moe,
        "mask_token_id": model.mask_token_id,
    }
    rebuilt = manifest.model_copy(update=read)
    graph = derive_graph(_as_stored_by(rule, manifest), names)
    try:
        differing = _first_difference(graph, derive_graph(rebuilt, names))
    except RdrrError as error:  # For example: all models of this architecture have experts.
        raise _not_exportable(rule, error) from error
    if differing is not None:
        path, expected, derived = differing
        raise ConversionError(
            f"a configuration of {rule.name} cannot describe this model",
            where=f"{where}, {path}",
            expected=expected,
            found=derived,
        )
    return model


def _with_modules(inference: Inference, manifest: Manifest) -> Inference:
    """Return the blocks with what follows the model, which no configuration states."""
    block = manifest.inference.output.embedding_postprocessor
    output = inference.output.model_copy(update={"embedding_postprocessor": block})
    return inference.model_copy(update={"output": output})


def _not_exportable(rule: ArchitectureRule, error: RdrrError) -> ConversionError:
    return ConversionError(
        f"the package cannot be exported as {rule.name}: {error.message}",
        where=error.where,
        expected=error.expected,
        found=error.found,
    )


def check_described(
    config: Mapping[str, Any],
    package: Package,
    rule: ArchitectureRule,
    tensors: Sequence[LogicalTensor],
    model: SourceModel,
) -> None:
    """Check that the configuration mentions every tensor, since readers would ignore the others.

    Args:
        config: Content of `config.json`.
        package: The package.
        rule: Architecture of the configuration.
        tensors: The package's tensors.
        model: Result of `check_config`, which has checked that no required tensor is missing.

    Raises:
        ConversionError: The package has tensors that the configuration does not mention.
    """
    read = rule.config(config, package.where)
    stated = required_names(rule, read, model.sizes.num_layers, model.moe)
    if not read.flag("tie_word_embeddings"):
        stated |= {HEAD}
    canonical = {tensor.source.name: tensor.name for tensor in model.tensors}
    extra = [logical.name for logical in tensors if canonical.get(logical.name) not in stated]
    if extra:
        raise ConversionError(
            f"a configuration of {rule.name} cannot express that the model has {extra[0]}",
            where=package.where,
            expected="only tensors that follow from config.json",
            found=f"{len(extra)} other tensors",
            hint="name an architecture that has them with `arch`",
        )


def check_complete(
    package: Package,
    tensors: Sequence[LogicalTensor],
    outgoing: Sequence[OutgoingTensor],
    rule: ArchitectureRule,
) -> None:
    """Check that a plan contains every tensor exactly once, but for copies of rows.

    Raises:
        ConversionError: A tensor would be lost or written twice.
    """
    planned: Counter[str] = Counter()
    for written in outgoing:
        for part in written.parts:
            planned[part.name] += part.rows
    names = {written.name for written in outgoing}
    heads = package.manifest.architecture.num_attention_heads
    expected = {
        # Of the gates of a head, a checkpoint has the first.
        tensor.name: tensor.rows // 2 + heads if rule.head_gate(tensor.name) else tensor.rows
        for tensor in tensors
    }
    if planned != expected or len(names) != len(outgoing):
        lost = sorted(set(expected) - set(planned))
        raise ConversionError(
            "the checkpoint would not contain every tensor exactly once",
            where=f"{package.where}, {lost[0]}" if lost else package.where,
            expected=f"{len(expected)} tensors with different names",
            found=f"{len(planned)}, under {len(names)} names",
        )


def norm_shift(rule: ArchitectureRule, manifest: Manifest) -> float:
    """Return what to add to norm weights, since an architecture stores either w or 1 + w."""
    stored = manifest.inference.normalization.rms_norm_weight_offset
    return float(stored) - float(bool(rule.normalization.get("rms_norm_weight_offset")))


def _as_stored_by(rule: ArchitectureRule, manifest: Manifest) -> Manifest:
    """Return the manifest with the norm offset of `rule`, to which exported norms are shifted."""
    if not norm_shift(rule, manifest):
        return manifest
    offset = bool(rule.normalization.get("rms_norm_weight_offset"))
    norms = manifest.inference.normalization.model_copy(update={"rms_norm_weight_offset": offset})
    blocks = manifest.inference.model_copy(update={"normalization": norms})
    return manifest.model_copy(update={"inference": blocks})


def _placeholder(tensor: LogicalTensor) -> SourceTensor:
    """Return a source tensor that has only a name and a shape; its values are never read."""

    def unread() -> Any:
        raise AssertionError(f"{tensor.name} has no values here")

    return SourceTensor(tensor.name, tensor.shape, "F32", tensor.stored, unread)


def _first_difference(expected: Graph, rebuilt: Graph) -> tuple[str, object, object] | None:
    """Return the path and both values of the first difference between two graphs."""
    first, second = dict(_leaves(asdict(expected))), dict(_leaves(asdict(rebuilt)))
    for key in dict.fromkeys((*first, *second)):
        left, right = first.get(key), second.get(key)
        if isinstance(left, float) and isinstance(right, float):
            # GGUF stores float32, which is read back as its shortest decimal representation.
            if not isclose(left, right, rel_tol=1e-6):
                return key, left, right
        elif left != right:
            return key, left, right
    return None


def _leaves(value: Any, path: str = "graph") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
