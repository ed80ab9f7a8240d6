"""The tensors of one quantized module, found by their names and replaced by one.

It knows that a module's tensors differ in the last part of their names, not what they mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.sources.base import Decode, SourceTensor

Settings = Mapping[str, Any]
"""What `quantization_config` says."""

_ACTIVATIONS = frozenset(
    {"activation_scale", "input_scale", "input_zero_point", "input_global_scale", "output_scale",
     "output_zero_point", "q_scale", "k_scale", "v_scale", "prob_scale", "q_zero_point",
     "k_zero_point", "v_zero_point"}
)  # fmt: skip
"""Parts that say how activations and caches are quantized, which ours are not."""


@dataclass(frozen=True)
class Module:
    """What is stored of one quantized module.

    Attributes:
        name: Of the module, as `model.layers.0.self_attn.q_proj`.
        parts: Its tensors by the last part of their names.
    """

    name: str
    parts: Mapping[str, SourceTensor]

    def __getitem__(self, part: str) -> SourceTensor:
        """A part that must be there.

        Raises:
            SourceError: It is not.
        """
        if part not in self.parts:
            raise self.fault("a part of a quantized weight is missing", part, "to be there", "none")
        return self.parts[part]

    def get(self, part: str) -> SourceTensor | None:
        """A part that may be there; one without any value counts as absent."""
        tensor = self.parts.get(part)
        return None if tensor is None or 0 in tensor.shape else tensor

    def matrix(self, part: str, dtypes: tuple[str, ...]) -> SourceTensor:
        """A part that must be a matrix, not an empty one, of one of some dtypes.

        Raises:
            SourceError: It is not there, or something else.
        """
        tensor = self[part]
        if len(tensor.shape) != 2 or 0 in tensor.shape or tensor.dtype not in dtypes:
            found = f"{list(tensor.shape)} of {tensor.dtype}"
            raise self.fault("cannot be read", part, f"a matrix of {' or '.join(dtypes)}", found)
        return tensor

    def fault(self, message: str, part: str, expected: object, found: object) -> SourceError:
        """An error about one part."""
        file = next(iter(self.parts.values())).file
        return SourceError(
            message, where=f"{file}, tensor {self.name}.{part}", expected=expected, found=found
        )

    def decoded(
        self, shape: tuple[int, int], dtype: str, decode: Decode, file: str
    ) -> SourceTensor:
        """The weight, decoded where it is read.

        Args:
            shape: [N, K].
            dtype: How it is stored, in words.
            decode: Gives the values.
            file: File that holds the packed values.
        """
        return SourceTensor(f"{self.name}.weight", shape, dtype, file, _no_values, decode=decode)


def _no_values() -> npt.NDArray[Any]:
    """A decoded tensor has no stored values of its own: as many as none, whoever asks."""
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Method:
    """One way to quantize.

    Attributes:
        markers: Parts of which one tells that a module is quantized.
        parts: All parts that `decode` reads.
        check: Refuses settings that mean something else; given what they were read from.
        decode: Makes one tensor of a module.
        empty_biases: Modules without a bias are stored with one of zeros, which is left out.
    """

    markers: tuple[str, ...]
    parts: tuple[str, ...]
    check: Callable[[Settings, object], None]
    decode: Callable[[Module, Settings], SourceTensor]
    empty_biases: bool = False


def decode_modules(
    tensors: Mapping[str, SourceTensor], method: Method, settings: Settings, where: object
) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """The tensors with those of each quantized module replaced by its weight, and notes.

    Raises:
        SourceError: The settings are not known, or a module lacks a part or contradicts itself.
    """
    method.check(settings, where)
    modules = _quantized(tensors, method)
    result: dict[str, SourceTensor] = {}
    dropped = empty = 0
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part in _ACTIVATIONS:
            dropped += 1
        elif method.empty_biases and stem in modules and part == "bias" and _is_zero(tensor):
            empty += 1
        elif stem not in modules or part not in method.parts:
            result[name] = tensor
        elif f"{stem}.weight" not in result:
            result[f"{stem}.weight"] = method.decode(modules[stem], settings)
    notes = (
        (dropped, "scales of activations and caches: left out, those are not quantized here"),
        (empty, "biases of zeros beside quantized weights: left out"),
    )
    return result, tuple(f"{count} {text}" for count, text in notes if count)


def _is_zero(tensor: SourceTensor) -> bool:
    return tensor.magnitude() == 0.0


def _quantized(tensors: Mapping[str, SourceTensor], method: Method) -> dict[str, Module]:
    parts: defaultdict[str, dict[str, SourceTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part in method.parts:
            parts[stem][part] = tensor
    return {
        stem: Module(stem, found)
        for stem, found in parts.items()
        if any(mark in found for mark in method.markers)
    }


def first_integer(settings: Settings, *keys: str) -> int | None:
    """The first of some settings that is a whole number."""
    for key in keys:
        value = settings.get(key)
        if type(value) is int:
            return value
    return None
