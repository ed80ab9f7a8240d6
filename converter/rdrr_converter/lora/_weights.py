"""Reading an adapter's tensors, and sorting them by module and part.

The names have these forms:

base_model.model.MODULE.lora_A.weight            [rank, inputs]
base_model.model.MODULE.lora_B.weight            [outputs, rank]
base_model.model.MODULE.lora_B.bias              [outputs]
base_model.model.MODULE.lora_embedding_A         [rank, vocabulary]
base_model.model.MODULE.lora_embedding_B         [hidden size, rank]
base_model.model.MODULE.lora_magnitude_vector    [outputs], with DoRA
base_model.model.MODULE.weight or .bias          replaces the tensor of the base
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.files import find_file
from rdrr_converter.checkpoint.source import SourceTensor, without_wrappers
from rdrr_converter.sources import safetensors, torch_pickle

_FILES = (
    ("adapter_model.safetensors", safetensors.read_file),
    ("adapter_model.bin", torch_pickle.read_file),
)
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(\.default)?(\.(?P<kind>weight|bias))?"
)
_WHOLE = re.compile(
    r"(?P<module>.+?)(\.base_layer|\.modules_to_save(\.default)?)?\.(?P<kind>weight|bias)"
)


_DIMENSIONS = {
    "A": "[rank, inputs]",
    "B": "[outputs, rank]",
    "B.bias": "[outputs]",
    "embedding_A": "[rank, vocabulary]",
    "embedding_B": "[hidden size, rank]",
    "magnitude_vector": "[outputs]",
}
"""The dimensions of the parts of a module; other parts are refused when they are merged."""


@dataclass(frozen=True)
class AdapterWeights:
    """The tensors of an adapter.

    Attributes:
        parts: For each module that the adapter changes, its tensors by part: `A`, `B`, `B.bias`,
            `embedding_A`, `embedding_B` or `magnitude_vector`.
        replaced: Tensors that replace those of the base, by their names in the base.
    """

    parts: Mapping[str, Mapping[str, SourceTensor]]
    replaced: Mapping[str, SourceTensor]


def read_adapter_weights(folder: Path) -> AdapterWeights:
    """Read the tensors in an adapter's folder.

    Raises:
        SourceError: There is no file of weights, the file is damaged, the name of a tensor has an
            unknown form, or a part of a module has the wrong number of dimensions.
    """
    for name, read in _FILES:
        path = find_file(folder, name, follow_links=True)
        if path is not None:
            return _classified(without_wrappers(read(path)), path)
    expected = " or ".join(name for name, _ in _FILES)
    raise SourceError("the adapter has no weights", where=folder, expected=expected)


def _classified(tensors: Mapping[str, SourceTensor], where: Path) -> AdapterWeights:
    parts: defaultdict[str, dict[str, SourceTensor]] = defaultdict(dict)
    replaced: dict[str, SourceTensor] = {}
    for name, tensor in tensors.items():
        inner = name.removeprefix(_PREFIX)
        if part := _PART.fullmatch(inner):
            kind = part["part"] + (".bias" if part["kind"] == "bias" else "")
            _check_part(kind, tensor, where)
            _add(parts[part["module"]], kind, tensor, where)
        elif "lora_" not in inner and (whole := _WHOLE.fullmatch(inner)):
            _add(replaced, f"{whole['module']}.{whole['kind']}", tensor, where)
        else:
            raise SourceError(
                "the adapter has a tensor that cannot be merged",
                where=where,
                expected="tensors of LoRA modules, or replaced weights and biases",
                found=name,
            )
    return AdapterWeights(parts, replaced)


def _check_part(kind: str, tensor: SourceTensor, where: Path) -> None:
    """Check the number of dimensions of a module's part."""
    expected = _DIMENSIONS.get(kind)
    if expected is not None and len(tensor.shape) != expected.count(",") + 1:
        raise SourceError(
            "a tensor of the adapter has the wrong number of dimensions",
            where=f"{where}, tensor {tensor.name}",
            expected=expected,
            found=list(tensor.shape),
        )


def _add(known: dict[str, SourceTensor], name: str, tensor: SourceTensor, where: Path) -> None:
    """Add a tensor, and refuse a second one of the same meaning, of which only one would count."""
    if name in known:
        raise SourceError(
            "two tensors of the adapter mean the same one",
            where=f"{where}, tensor {tensor.name}",
            expected="one of them",
            found=known[name].name,
        )
    known[name] = tensor
