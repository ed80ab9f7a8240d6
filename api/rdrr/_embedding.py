"""Embeddings: the hidden states of a text, pooled as the manifest says.

The formula is that of sentence-transformers: a prompt is put before the text, the special tokens of
the tokenizer are added, the hidden states after the final norm are pooled, and the result may be
divided by its Euclidean norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ManifestError, UsageError
from rdrr_format.options import shown

if TYPE_CHECKING:
    from rdrr_manifests.models import EmbeddingPostprocessor
    from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]
POOLINGS = ("cls", "last", "mean")

NORMS = (None, "none", "l2")

_SMALLEST = 1e-12
"""Lower bound of the norm that a vector is divided by, as in torch's `normalize`."""


class Pooling:
    """How a package makes embeddings.

    Args:
        package: The package.

    Raises:
        ManifestError: It is no embedding model, or asks for something that is not known here.
    """

    def __init__(self, package: Package) -> None:
        self._block = _block(package)
        self._layers = [
            (_tensor(package, projection.weight_tensor), _tensor(package, projection.bias_tensor))
            for projection in self._block.projections
        ]

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

    def pool(self, rows: F32, skipped: int = 0) -> F32:
        """Return the embedding of one text, float32 [width].

        Args:
            rows: Hidden states, [tokens, hidden size].
            skipped: Number of first rows that a mean leaves out.
        """
        mode = self._block.pooling_mode
        if mode == "mean":
            pooled: F32 = rows[skipped:].mean(axis=0, dtype=np.float64).astype(np.float32)
        else:
            pooled = rows[0 if mode == "cls" else -1].copy()
        for weight, bias in self._layers:
            assert weight is not None, "a projection has a weight"
            pooled = weight @ pooled
            if bias is not None:
                pooled = pooled + bias
        if self._block.normalize == "l2":
            pooled /= max(float(np.linalg.norm(pooled)), _SMALLEST)
        return pooled


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
            all(projection.activation == "identity" for projection in block.projections),
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
