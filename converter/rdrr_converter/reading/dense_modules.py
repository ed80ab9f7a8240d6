"""Reading the linear layers of a sentence-transformers checkpoint, which have own weight files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.models.embedding import Projection

from rdrr_converter.checkpoint.files import find_file, parse_json_object
from rdrr_converter.checkpoint.source import Source, SourceTensor
from rdrr_converter.reading.matching import ModelTensor
from rdrr_converter.sources.safetensors import SINGLE, read_file

_NAME = "embedding_postprocessor.projections.{index}.{kind}"
"""Names of the tensors in the package."""

_IDENTITY = "Identity"

Layer = tuple[Projection, list[ModelTensor]]


def read_layers(source: Source, folders: Sequence[str], hidden_size: int) -> list[Layer]:
    """Return the linear layers in these folders, in order, each with its tensors.

    Args:
        source: The checkpoint.
        folders: Names of the folders.
        hidden_size: Elements of the vector that the first layer reads.

    Raises:
        SourceError: A file is missing or damaged, or the sizes of layers do not fit.
        ConversionError: A layer has an activation.
    """
    layers: list[Layer] = []
    width = hidden_size
    for index, folder in enumerate(folders):
        layer, tensors = _layer(source, folder, index, width)
        layers.append((layer, tensors))
        width = layer.output_size
    return layers


def read_module(source: Source, name: str) -> Mapping[str, Any]:
    """Return the configuration of a module.

    Raises:
        SourceError: It is missing or damaged.
    """
    content = source.content(name)
    if content is None:
        raise SourceError(
            "the configuration of a module is missing",
            where=source.path,
            expected=name,
            hint="download the whole checkpoint, with its folders",
        )
    return parse_json_object(content, source.path / name)


def _layer(source: Source, folder: str, index: int, width: int) -> Layer:
    settings = read_module(source, f"{folder}/config.json")
    where = source.path / folder
    activation = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    if str(activation).rpartition(".")[2] != _IDENTITY:
        raise ConversionError(
            "a linear layer after the pooling has an activation, which the format cannot express",
            where=where / "config.json",
            expected=f"activation_function {_IDENTITY}",
            found=activation,
        )
    inside = source.modules.get(folder)
    if inside is None and (find_file(source.path, f"{folder}/{SINGLE}", follow_links=True) is None):
        raise SourceError(
            "the weights of a module are missing",
            where=source.path,
            expected=f"{folder}/{SINGLE}",
            hint="download the whole checkpoint, with its folders",
        )
    stored = read_file(where / SINGLE) if inside is None else inside
    rows = settings.get("out_features")
    shapes: dict[str, tuple[object, ...]] = {"linear.weight": (rows, width)}
    if settings.get("bias", True):
        shapes["linear.bias"] = (rows,)
    stored_shapes = {name: tensor.shape for name, tensor in stored.items()}
    if stored_shapes != shapes:
        raise SourceError(
            "the weights of a module do not fit its configuration and the module before it",
            where=where / SINGLE,
            expected=shapes,
            found=stored_shapes,
        )
    tensors = [_tensor(part, folder, index) for part in stored.values()]
    names = [tensor.name for tensor in tensors]
    biases = [name for name in names if name.endswith("bias")]
    layer = Projection(
        input_size=width,
        output_size=stored["linear.weight"].shape[0],
        weight_tensor=_NAME.format(index=index, kind="weight"),
        bias_tensor=biases[0] if biases else None,
    )
    return layer, tensors


def _tensor(tensor: SourceTensor, folder: str, index: int) -> ModelTensor:
    """Return a tensor of a layer with its name in the package."""
    kind = tensor.name.rpartition(".")[2]
    named = replace(tensor, name=f"{folder}/{tensor.name}")
    role = "bias" if kind == "bias" else "other"
    return ModelTensor(_NAME.format(index=index, kind=kind), named, role, None)
