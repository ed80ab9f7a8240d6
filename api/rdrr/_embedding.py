"""Embeddings: the hidden states of a text, pooled as the manifest says.

The formula is that of sentence-transformers: a prompt is put before the text, the special tokens of
the tokenizer are added, the hidden states after the final norm are pooled, and the result may be
divided by its Euclidean norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ManifestError, UsageError
from rdrr_format.options import shown

if TYPE_CHECKING:
    from rdrr_manifests.models import EmbeddingPostprocessor
    from rdrr_manifests.models.embedding import Projection
    from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]
POOLINGS = ("cls", "last", "mean", "none")

NORMS = (None, "none", "l2")

_SMALLEST = 1e-12
"""Lower bound of the norm that a vector is divided by, as in torch's `normalize`."""


class Embeddings(np.ndarray[Any, np.dtype[np.float32]]):
    """Embeddings of texts, float32 [number of texts, width]; an array of NumPy like any other.

    Attributes:
        truncated: Indices of the texts whose end was left out.
    """

    truncated: tuple[int, ...] = ()

    @staticmethod
    def of(vectors: F32, truncated: tuple[int, ...]) -> Embeddings:
        """Return an array with what was left out for it."""
        embeddings = vectors.view(Embeddings)
        embeddings.truncated = truncated
        return embeddings


def _gelu_erf(x: F32) -> F32:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * x * (1.0 + erf(x.astype(np.float64) / math.sqrt(2.0))), np.float32)


def _gelu_tanh(x: F32) -> F32:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)), np.float32)


ACTIVATIONS: Mapping[str, Callable[[F32], F32]] = MappingProxyType(
    {
        "identity": lambda x: x,
        "gelu": _gelu_tanh,
        "gelu_erf": _gelu_erf,
        "relu": lambda x: np.maximum(x, np.float32(0.0)),
        "silu": lambda x: np.asarray(x * np.exp(-np.logaddexp(0.0, -x)), np.float32),
        "tanh": np.tanh,
    }
)
"""The activations of projections, by the manifest's names."""


@dataclass(frozen=True)
class _Layer:
    """A projection with its tensors."""

    weight: F32
    bias: F32 | None
    activation: Callable[[F32], F32]
    gain: F32 | None
    shift: F32 | None
    eps: float

    @staticmethod
    def of(package: Package, block: Projection) -> _Layer:
        """Read the tensors of a projection."""
        weight = _tensor(package, block.weight_tensor)
        assert weight is not None, "a projection has a weight"
        return _Layer(
            weight,
            _tensor(package, block.bias_tensor),
            ACTIVATIONS[block.activation],
            _tensor(package, block.norm_tensor),
            _tensor(package, block.norm_bias_tensor),
            block.norm_eps or 0.0,
        )

    def __call__(self, x: F32) -> F32:
        """Return the outputs for inputs [..., input size]."""
        y: F32 = x @ self.weight.T
        y = self.activation(y if self.bias is None else y + self.bias)
        if self.gain is None:
            return y
        centred = y - y.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        y = centred / np.sqrt(variance + np.float32(self.eps)) * self.gain
        return np.asarray(y if self.shift is None else y + self.shift, np.float32)


class Pooling:
    """How a package makes embeddings.

    Args:
        package: The package.

    Raises:
        ManifestError: It is no embedding model, or asks for something that is not known here.
    """

    def __init__(self, package: Package) -> None:
        self._block, self._where = _block(package), package.where
        self._layers = [_Layer.of(package, projection) for projection in self._block.projections]

    @property
    def by_token(self) -> bool:
        """Whether each token has a result of its own."""
        return self._block.pooling_mode == "none"

    def check_pools(self, *, by_token: bool = False) -> None:
        """Check that the result is that of a text, or with `by_token` of each token.

        Raises:
            ManifestError: It is not.
        """
        if self.by_token == by_token:
            return
        raise ManifestError(
            "this model has a result for each token, and none for a text"
            if self.by_token
            else "this model has a result for a text, and none for each token",
            where=f"{self._where}, inference.output.embeddingPostprocessor.poolingMode",
            found=self._block.pooling_mode,
            hint="use `classify_tokens` or `fill_masks`" if self.by_token else "use `classify`",
        )

    @property
    def width(self) -> int | None:
        """Elements of an embedding; None for that of the hidden states."""
        layers = self._block.projections
        return layers[-1].output_size if layers else None

    def prompt(self, name: str | None) -> str:
        """Return the prompt of this name; that of the default name, or no prompt, when None.

        Raises:
            UsageError: There is no such prompt.
        """
        chosen = self._block.default_prompt_name if name is None else name
        if chosen is None:
            return ""
        if chosen not in self._block.prompts:
            raise UsageError(
                "the package has no such prompt",
                expected=", ".join(sorted(self._block.prompts)) or "no prompt: it has none",
                found=shown(chosen),
                hint="for another instruction, write it into the text itself",
            )
        return self._block.prompts[chosen]

    def skipped(self, prompt: str, encode: Callable[[str], list[int]], suffix: int) -> int:
        """Return how many first tokens of a text with a prompt the mean leaves out.

        Args:
            prompt: The prompt.
            encode: Returns the token ids of a text, with special tokens.
            suffix: Number of special tokens that the tokenizer puts after a text.
        """
        if not prompt or self._block.include_prompt:
            return 0
        # Encoded alone, the prompt ends with these tokens too; before a text it does not.
        return max(0, len(encode(prompt)) - suffix)

    def part(self, skipped: int = 0) -> slice:
        """Return the tokens of a text whose hidden states are averaged.

        Args:
            skipped: Number of first tokens that a mean leaves out.
        """
        return {"cls": slice(0, 1), "last": slice(-1, None)}.get(
            self._block.pooling_mode, slice(skipped, None)
        )

    def finish(self, means: F32) -> F32:
        """Return the embeddings of texts, [..., width], from the means of their hidden states."""
        vectors = self.project(means)
        if self._block.normalize == "l2":
            norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.float32(_SMALLEST))
        return vectors

    def project(self, rows: F32) -> F32:
        """Return what the projections make of rows, [..., width]."""
        for layer in self._layers:
            rows = layer(rows)
        return rows


def _tensor(package: Package, name: str | None) -> F32 | None:
    """Return a tensor of a projection as float32; None where there is none."""
    return None if name is None else np.asarray(package.dequantize(name), np.float32)


def _block(package: Package) -> EmbeddingPostprocessor:
    """Return the block of a package whose embeddings can be computed."""
    block = package.manifest.inference.output.embedding_postprocessor
    if block is None:
        raise ManifestError(
            "this package is no embedding model: it does not say how embeddings are made",
            where=package.where,
            expected="inference.output.embeddingPostprocessor",
            hint="convert a checkpoint of sentence-transformers, with its modules.json",
        )
    known: dict[str, tuple[Any, bool]] = {
        "poolingMode": (block.pooling_mode, block.pooling_mode in POOLINGS),
        "projections": (
            ", ".join(projection.activation for projection in block.projections),
            all(projection.activation in ACTIVATIONS for projection in block.projections),
        ),
        "normalize": (block.normalize, block.normalize in NORMS),
    }
    for field, (value, is_known) in known.items():
        if not is_known:
            raise ManifestError(
                "this version cannot make the embeddings of this package",
                where=f"{package.where}, inference.output.embeddingPostprocessor.{field}",
                found=value,
                hint="use a newer rdrr",
            )
    return block
