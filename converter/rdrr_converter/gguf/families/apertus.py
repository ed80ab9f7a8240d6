"""Apertus in GGUF files, where the parameters of its activation are metadata and no tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_format.errors import SourceError
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.settings import IGNORED_WINDOW, WITHOUT_BIASES

_ACTIVATION = ".mlp.act_fn."
"""A part of the names of the parameters of an activation."""

_XIELU: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"alpha_n": (1,), "alpha_p": (1,), "beta": (), "eps": ()}
)
"""Shapes of the parameters of xIELU, which the metadata `xielu.NAME` lists for all layers."""

APERTUS = GgufArchitecture(
    "apertus",
    "ApertusForCausalLM",
    {
        **layer_names.LAYER,
        "attn_norm": "attention_layernorm",
        "ffn_norm": "feedforward_layernorm",
    },
    in_metadata=_ACTIVATION,
    settings=(WITHOUT_BIASES, IGNORED_WINDOW),
)


def _name(layer: int, parameter: str) -> str:
    return f"model.layers.{layer}{_ACTIVATION}{parameter}"


def stated_tensors(metadata: Mapping[str, Any], layers: int, where: str) -> Iterator[SourceTensor]:
    """Yield the parameters of xIELU, if the metadata states them.

    Args:
        metadata: Metadata of the file.
        layers: Number of layers.
        where: Path of the file.

    Raises:
        SourceError: A parameter is not stated for every layer.
    """
    if f"xielu.{next(iter(_XIELU))}" not in metadata:
        return
    for name, shape in _XIELU.items():
        values = metadata.get(f"xielu.{name}")
        by_layer = values if isinstance(values, list) else [values] * layers
        if len(by_layer) < layers or not all(type(number) in (int, float) for number in by_layer):
            raise SourceError(
                "impossible parameters of an activation",
                where=f"{where}, xielu.{name}",
                expected=f"{layers} numbers",
                found=values,
            )
        for layer, value in enumerate(by_layer[:layers]):
            native = partial(np.full, (1, 1), value, np.float32)
            yield SourceTensor(_name(layer, name), shape, "F32", where, native)


def stated_parameters(package: Package) -> dict[str, list[float]]:
    """Return the parameters of xIELU as metadata, a list with the value of each layer."""
    layers = range(package.manifest.architecture.num_layers)
    return {
        f"xielu.{name}": [
            float(package.dequantize(_name(layer, name)).reshape(-1)[0]) for layer in layers
        ]
        for name in _XIELU
    }
