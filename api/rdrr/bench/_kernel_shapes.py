"""Matrices of known models, for measuring kernels alone: sizes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Matrix:
    """One product of a model.

    Attributes:
        name: What it is.
        n: Outputs.
        k: Inputs.
    """

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Shape:
    """The widths that decide a model's matrices."""

    hidden: int
    queries: int
    keys: int
    intermediate: int
    vocab: int

    def matrices(self) -> tuple[Matrix, ...]:
        """The different products of one token."""
        return (
            Matrix("qkv", self.queries + 2 * self.keys, self.hidden),
            Matrix("output", self.hidden, self.queries),
            Matrix("gate-up", 2 * self.intermediate, self.hidden),
            Matrix("down", self.hidden, self.intermediate),
            Matrix("head", self.vocab, self.hidden),
        )


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny": Shape(256, 256, 128, 512, 1024),
        "smollm-135m": Shape(576, 576, 192, 1536, 49152),
        "gemma3-1b": Shape(1152, 1024, 256, 6912, 262144),
        "llama-1b": Shape(2048, 2048, 512, 8192, 128256),
        "llama-3b": Shape(3072, 3072, 1024, 8192, 128256),
        "llama-8b": Shape(4096, 4096, 1024, 14336, 128256),
    }
)
