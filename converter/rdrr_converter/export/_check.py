"""The proof that a configuration means the package: the same graph, and exactly its tensors.

It is read as any checkpoint's is; unless the package's graph comes out, nothing is exported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

from rdrr_format.errors import ConversionError, RdrrError
from rdrr_manifests.graph import Graph, derive_graph
from rdrr_manifests.logical import HEAD, LogicalTensor
from rdrr_manifests.models import Manifest
from rdrr_manifests.package import Package

from rdrr_converter.architectures import ArchitectureRule, Config
from rdrr_converter.export._values import Outgoing
from rdrr_converter.matching import required_names
from rdrr_converter.reading import SourceModel, read_model
from rdrr_converter.sources import Source, SourceTensor


def check_config(
    config: Mapping[str, Any],
    package: Package,
    rule: ArchitectureRule,
    tensors: Sequence[LogicalTensor],
) -> SourceModel:
    """Read a configuration as a checkpoint's, and compare what the model would compute.

    Returns:
        The model that the configuration states.

    Raises:
        ConversionError: It does not state the package's model.
    """
    source = Source(
        path=Path(package.where),
        kind="package",
        config=config,
        tensors={one.name: _stand_in(one) for one in tensors},
    )
    try:
        model = read_model(source, rule)
    except RdrrError as error:
        raise ConversionError(
            f"cannot be written as {rule.name}: {error.message}",
            where=error.where,
            expected=error.expected,
            found=error.found,
        ) from error
    names = [tensor.name for tensor in tensors]
    read: dict[str, object] = {
        "architecture": model.sizes,
        "inference": model.inference,
        "moe_config": model.moe,
        "mask_token_id": model.mask_token_id,
    }
    theirs = package.manifest.model_copy(update=read)
    differing = _first_difference(
        derive_graph(_as_stored_by(rule, package.manifest), names), derive_graph(theirs, names)
    )
    if differing is not None:
        where, ours, found = differing
        raise ConversionError(
            f"a configuration of {rule.name} cannot state this model",
            where=f"{package.where}, {where}",
            expected=ours,
            found=found,
        )
    return model


def check_described(
    config: Mapping[str, Any],
    package: Package,
    rule: ArchitectureRule,
    tensors: Sequence[LogicalTensor],
    model: SourceModel,
) -> None:
    """Refuse a configuration that lacks a word for a tensor: its readers would leave it out.

    Args:
        config: `config.json`.
        package: The package.
        rule: Architecture of the configuration.
        tensors: The package's tensors.
        model: What `check_config` read, so every tensor that the configuration requires is there.

    Raises:
        ConversionError: The package has more tensors than the configuration states.
    """
    read = Config(config, rule.defaults, package.where)
    stated = required_names(rule, read, model.sizes.num_layers, model.moe)
    if not read.flag("tie_word_embeddings"):
        stated |= {HEAD}
    canonical = {tensor.source.name: tensor.name for tensor in model.tensors}
    extra = [one.name for one in tensors if canonical.get(one.name) not in stated]
    if extra:
        raise ConversionError(
            f"a configuration of {rule.name} cannot state that there is {extra[0]}",
            where=package.where,
            expected="only tensors that a reader of config.json expects",
            found=f"{len(extra)} more",
            hint="name an architecture that has them with `arch`",
        )


def check_complete(
    package: Package, tensors: Sequence[LogicalTensor], outgoing: Sequence[Outgoing]
) -> None:
    """Refuse a plan that does not hold every tensor once.

    Raises:
        ConversionError: A tensor would be lost or written twice.
    """
    planned = sorted(part.name for one in outgoing for part in one.parts)
    names = {one.name for one in outgoing}
    expected = sorted(tensor.name for tensor in tensors)
    if planned != expected or len(names) != len(outgoing):
        lost = sorted(set(expected) - set(planned))
        raise ConversionError(
            "the checkpoint would not hold every tensor once",
            where=f"{package.where}, {lost[0]}" if lost else package.where,
            expected=f"{len(expected)} tensors of different names",
            found=f"{len(planned)}, under {len(names)} names",
        )


def norm_shift(rule: ArchitectureRule, manifest: Manifest) -> float:
    """What is to be added to norms: checkpoints of a family store w, or 1 + w, all alike."""
    stored = manifest.inference.normalization.rms_norm_weight_offset
    return float(stored) - float(bool(rule.normalization.get("rms_norm_weight_offset")))


def _as_stored_by(rule: ArchitectureRule, manifest: Manifest) -> Manifest:
    """The manifest with the norms of `rule`, to which exported norms are shifted."""
    if not norm_shift(rule, manifest):
        return manifest
    offset = bool(rule.normalization.get("rms_norm_weight_offset"))
    norms = manifest.inference.normalization.model_copy(update={"rms_norm_weight_offset": offset})
    blocks = manifest.inference.model_copy(update={"normalization": norms})
    return manifest.model_copy(update={"inference": blocks})


def _stand_in(tensor: LogicalTensor) -> SourceTensor:
    """A tensor that has a name and a shape, which is all that is looked at."""

    def unread() -> Any:
        raise AssertionError(f"{tensor.name} has no values here")

    return SourceTensor(tensor.name, tensor.shape, "F32", tensor.stored, unread)


def _first_difference(ours: Graph, theirs: Graph) -> tuple[str, object, object] | None:
    """Place and both values of the first thing that two graphs disagree on."""
    one, two = dict(_leaves(asdict(ours))), dict(_leaves(asdict(theirs)))
    for key in dict.fromkeys((*one, *two)):
        mine, other = one.get(key), two.get(key)
        if isinstance(mine, float) and isinstance(other, float):
            # GGUF keeps float32, which is read back as the shortest decimal that means it.
            if not isclose(mine, other, rel_tol=1e-6):
                return key, mine, other
        elif mine != other:
            return key, mine, other
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
