"""Methods of the option `quality` that choose blocks by what the model computes.

A method gets a draft: the package as it would be written without it, beside its source. It replaces
the stored bytes of some tensors; types, layouts and sizes stay. Methods run one after the other,
each from the result of the one before. A further method is a name in
`rdrr_converter.options.METHODS` and a row in `_METHODS`. It returns a note on what it has done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_converter.plan import EncodedTensors
from rdrr_format.encoding import decode_tensor
from rdrr_manifests.graph.names import GATE_UP, PAIRS
from rdrr_manifests.package import Package, open_package

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Draft:
    """A package that is not written yet, and whose blocks a method may replace.

    Attributes:
        plain: Folder of the package of the source in F32.
        unrefined: Folder of the package without the methods.
        folder: Folder of the stored bytes that replace those of `unrefined`.
        text: Text to calibrate on; None for texts that the model itself writes.
        search: Search for the scales of a block, one of `QUALITIES`.
        device: Device of torch to compute on.
    """

    plain: Path
    unrefined: Path
    folder: Path
    text: str | None = None
    search: str = "ref"
    device: str = "cpu"

    @cached_property
    def source(self) -> Package:
        """The source, every tensor in F32."""
        return open_package(self.plain)

    @cached_property
    def package(self) -> Package:
        """The package without the methods; its graph is that of the finished one."""
        return open_package(self.unrefined)

    def source_values(self, name: str) -> F32:
        """Return a tensor of the package as the source has it, float32 in its logical shape."""
        if name in self.source.manifest.tensors:
            return self.source.dequantize(name)
        pairs = (pair for pair in PAIRS if name.replace(GATE_UP, pair[0]) in self._source_names)
        gate, up, _ = next(pairs)
        parts = [self.source.dequantize(name.replace(GATE_UP, part)) for part in (gate, up)]
        return np.concatenate(parts)

    @property
    def _source_names(self) -> Mapping[str, object]:
        return self.source.manifest.tensors

    def is_replaced(self, name: str) -> bool:
        """Return whether a method has replaced the bytes of a tensor."""
        return (self.folder / name).exists()

    def stored(self, name: str) -> Bytes:
        """Return the bytes of a tensor as the methods so far have left them, uint8 [size]."""
        is_replaced = self.is_replaced(name)
        return np.fromfile(self.folder / name, np.uint8) if is_replaced else self.package.read(name)

    def values(self, name: str) -> F32:
        """Return what the stored bytes of a tensor decode to, float32 in its logical shape."""
        tensor = self.package.tensor(name)
        decoded: F32 = decode_tensor(
            self.stored(name), tensor.parsed_dtype(), tensor.shape, tensor.parsed_layout()
        )
        return decoded

    def replace(self, name: str, stored: Bytes) -> None:
        """Replace the stored bytes of a tensor."""
        stored.tofile(self.folder / name)


_METHODS: Mapping[str, str] = MappingProxyType(
    {"gptq": "rdrr._gptq:gptq", "distill": "rdrr._distill:distill"}
)
"""The module and the function of each method, imported when it is asked for."""

_CHECKS: Mapping[str, str] = MappingProxyType({"distill": "rdrr._distill:check_predicts"})
"""The same for a check of the model before anything runs, where a method is not for all models."""


def refine(draft: Draft, methods: Sequence[str]) -> EncodedTensors:
    """Apply methods of the option `quality` to a draft, in the given order."""
    draft.folder.mkdir()
    notes = tuple(_imported(_METHODS[name])(draft) for name in methods)
    return EncodedTensors(draft.folder, notes)


def check_methods(plain: Path, methods: Sequence[str]) -> None:
    """Check that methods can improve a model.

    Args:
        plain: Package of the source in F32.
        methods: Their names.

    Raises:
        UsageError: One of them cannot.
    """
    for name in set(methods) & set(_CHECKS):
        _imported(_CHECKS[name])(open_package(plain).graph)


def _imported(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    attribute: Callable[..., Any] = getattr(import_module(module), function)
    return attribute
