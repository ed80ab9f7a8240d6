"""Find the tensors of each quantized module by their names, and replace them by one tensor.

The tensors of a module differ in the last component of their names, its parts. What the parts mean
is known only to the methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.magnitudes import measure
from rdrr_converter.checkpoint.source import Decode, SourceTensor

Settings = Mapping[str, Any]
"""The content of `quantization_config`."""

_ACTIVATIONS = frozenset(
    {"activation_scale", "input_scale", "input_zero_point", "input_global_scale", "output_scale",
     "output_zero_point", "q_scale", "k_scale", "v_scale", "prob_scale", "q_zero_point",
     "k_zero_point", "v_zero_point"}
)  # fmt: skip
"""Parts that describe how activations and caches are quantized; a package does not need them."""


@dataclass(frozen=True)
class Module:
    """The stored tensors of one quantized module.

    Attributes:
        name: Name of the module, such as `model.layers.0.self_attn.q_proj`.
        parts: Tensors by the last component of their names.
    """

    name: str
    parts: Mapping[str, SourceTensor]

    def __getitem__(self, part: str) -> SourceTensor:
        """Return a part.

        Raises:
            SourceError: The part is missing.
        """
        if part not in self.parts:
            raise self.fault("a part of a quantized weight is missing", part, "a tensor", "none")
        return self.parts[part]

    def get(self, part: str) -> SourceTensor | None:
        """Return a part, or None if it is missing or empty."""
        tensor = self.parts.get(part)
        return None if tensor is None or 0 in tensor.shape else tensor

    def matrix(self, part: str, dtypes: tuple[str, ...]) -> SourceTensor:
        """Return a part that must be a matrix with one of some dtypes, and not empty.

        Raises:
            SourceError: The part is missing, or is something else.
        """
        tensor = self[part]
        if len(tensor.shape) != 2 or 0 in tensor.shape or tensor.dtype not in dtypes:
            form = f"{list(tensor.shape)} of {tensor.dtype}"
            raise self.fault("cannot be read", part, f"a matrix of {' or '.join(dtypes)}", form)
        return tensor

    def fault(self, message: str, part: str, expected: object, found: object) -> SourceError:
        """Return an error about one part."""
        file = next(iter(self.parts.values())).file
        return SourceError(
            message, where=f"{file}, tensor {self.name}.{part}", expected=expected, found=found
        )

    def decoded(
        self, shape: tuple[int, int], dtype: str, decode: Decode, file: str
    ) -> SourceTensor:
        """Return the module's weight as a tensor that is decoded when read.

        Args:
            shape: Logical shape [N, K].
            dtype: How the weight is stored, in words.
            decode: Decodes parts of the weight.
            file: Path of the file that holds the packed values.
        """
        return SourceTensor(f"{self.name}.weight", shape, dtype, file, _no_values, decode=decode)


def _no_values() -> npt.NDArray[Any]:
    """Return an empty array, because a decoded tensor has no stored values of its own."""
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Method:
    """A quantization method.

    Attributes:
        markers: Parts that only quantized modules have; one of them is enough.
        parts: All parts that `decode` reads.
        check: Function of the settings and their path that refuses unsupported settings.
        decode: Makes one tensor of a module, given the settings.
        empty_biases: Whether modules without a bias are stored with a bias of zeros, to be omitted.
    """

    markers: tuple[str, ...]
    parts: tuple[str, ...]
    check: Callable[[Settings, object], None]
    decode: Callable[[Module, Settings], SourceTensor]
    empty_biases: bool = False


def decode_modules(
    tensors: Mapping[str, SourceTensor], method: Method, settings: Settings, where: object
) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """Replace the tensors of each quantized module by one weight.

    Returns:
        All tensors by name, and notes about those that were omitted.

    Raises:
        SourceError: The settings are not supported, or a module lacks a part or is inconsistent.
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
        (
            dropped,
            "scales of activations and caches are omitted, because those are not quantized here",
        ),
        (empty, "biases of zeros beside quantized weights are omitted"),
    )
    return result, tuple(f"{count} {text}" for count, text in notes if count)


def _is_zero(tensor: SourceTensor) -> bool:
    return measure(tensor).largest == 0.0


def _quantized(tensors: Mapping[str, SourceTensor], method: Method) -> dict[str, Module]:
    parts: defaultdict[str, dict[str, SourceTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part in method.parts:
            parts[stem][part] = tensor
    return {
        stem: Module(stem, module_parts)
        for stem, module_parts in parts.items()
        if any(mark in module_parts for mark in method.markers)
    }


def first_integer(settings: Settings, *keys: str) -> int | None:
    """Return the first of some settings that is an integer, or None."""
    for key in keys:
        value = settings.get(key)
        if type(value) is int:
            return value
    return None
