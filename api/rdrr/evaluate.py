"""Perplexity of a text, and the divergence between two models, or between their embeddings.

The text is cut into windows that do not overlap. Each window begins with an empty cache, and every
token after the first of its window is predicted from the tokens before it (teacher forcing).
Generated text is not evaluated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError, UsageError
from rdrr_format.html_tables import facts_table

from rdrr._model import Model
from rdrr._probabilities import divergence, log_softmax
from rdrr._sample_texts import SENTENCES

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ProgressCallback = Callable[[int, int], None]
"""Called with the number of tokens processed so far and the number of all tokens."""

WINDOW = 512
_MAX_LOSS = 700.0  # nats; exp() of more overflows float64


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        tokens: Number of predicted tokens.
        windows: Number of windows that the text was cut into.
        cross_entropy: Mean of -log(probability of the token), in nats.
    """

    tokens: int
    windows: int
    cross_entropy: float

    @property
    def perplexity(self) -> float:
        """exp(cross_entropy)."""
        return exp(self.cross_entropy)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self) | {"perplexity": self.perplexity}


@dataclass(frozen=True, repr=False)
class Comparison:
    """A model compared with a base model on the same tokens.

    Attributes:
        model: Perplexity of the model.
        base: Perplexity of the base.
        mean_divergence: Mean over the tokens of the Kullback-Leibler divergence of the model from
            the base, sum(p_base * log(p_base / p_model)), in nats.
        largest_divergence: Largest divergence at one token, in nats.
        same_top: Fraction of the tokens at which both models have the same most probable token.
        loss_error: Standard error of the difference of the two cross-entropies, token by token.
        divergence_error: Standard error of `mean_divergence`, in nats.
    """

    model: Perplexity
    base: Perplexity
    mean_divergence: float
    largest_divergence: float
    same_top: float
    loss_error: float
    divergence_error: float

    @property
    def ratio(self) -> float:
        """Perplexity of the model divided by that of the base."""
        return exp(self.model.cross_entropy - self.base.cross_entropy)

    @property
    def ratio_error(self) -> float:
        """Standard error of `ratio`; a difference from 1 of less than two or three is noise."""
        return self.ratio * self.loss_error

    def __repr__(self) -> str:
        return (
            f"Comparison(perplexity={self.model.perplexity:.4f}, "
            f"base_perplexity={self.base.perplexity:.4f}, ratio={self.ratio:.4f}, "
            f"mean_divergence={self.mean_divergence:.4g}, same_top={self.same_top:.4f}, "
            f"tokens={self.model.tokens})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the figures for notebooks."""
        return facts_table(
            f"Comparison over {self.model.tokens:,} tokens",
            {
                "perplexity": f"{self.model.perplexity:.4f}",
                "perplexity of the base": f"{self.base.perplexity:.4f}",
                "ratio": f"{self.ratio:.4f} ± {self.ratio_error:.4f}",
                "mean Kullback-Leibler divergence": (
                    f"{self.mean_divergence:.4g} ± {self.divergence_error:.2g} nats"
                ),
                "largest Kullback-Leibler divergence": f"{self.largest_divergence:.4g} nats",
                "same most probable token": f"{100 * self.same_top:.2f} % of the tokens",
            },
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            **self.model.as_dict(),
            "base": self.base.as_dict(),
            "ratio": self.ratio,
            "ratio_error": self.ratio_error,
            "mean_divergence": self.mean_divergence,
            "divergence_error": self.divergence_error,
            "largest_divergence": self.largest_divergence,
            "same_top": self.same_top,
        }


def perplexity(
    model: Model,
    text: str | Sequence[int],
    *,
    window: int = WINDOW,
    limit: int | None = None,
    stepwise: bool = False,
    progress: ProgressCallback | None = None,
) -> Perplexity:
    """Measure how well a model predicts a text.

    Args:
        model: The model, loaded with a context of at least `window` tokens.
        text: Text, or token ids.
        window: Tokens of a window; the last window may be shorter.
        limit: Most tokens of the text to use; all when None.
        stepwise: Run one token per pass, with the kernels of decode instead of those of prefill.
        progress: Called after each window.

    Raises:
        UsageError: The text or the window is shorter than two tokens.
        GenerationError: The window does not fit the model's context.
    """
    ids = token_ids(model, text, limit)
    losses = []
    for part in windows(ids, window, progress):
        logs = log_softmax(model.logits(part[:-1], stepwise=stepwise))
        losses.append(_losses(logs, part))
    return _mean(losses)


def compare(
    model: Model,
    base: Model,
    text: str | Sequence[int],
    *,
    window: int = WINDOW,
    limit: int | None = None,
    stepwise: bool = False,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Measure how far the predictions of a model are from those of a base model.

    Args:
        model: The model.
        base: The base model.
        text: Text, or token ids.
        window: Tokens of a window, as for `perplexity`.
        limit: Most tokens of the text to use; all when None.
        stepwise: Run one token per pass, as for `perplexity`.
        progress: Called after each window.

    Raises:
        UsageError: The tokenizers of the two differ, or as for `perplexity`.
        GenerationError: The window does not fit the context of one of them.
    """
    ids = token_ids(model, text, limit)
    _check_same_tokens(model, base, text, limit, ids)
    losses: tuple[list[F64], list[F64]] = ([], [])
    divergences, same = [], []
    for part in windows(ids, window, progress):
        predicted, reference = (
            log_softmax(side.logits(part[:-1], stepwise=stepwise)) for side in (model, base)
        )
        for where, logs in zip(losses, (predicted, reference), strict=True):
            where.append(_losses(logs, part))
        divergences.append(divergence(reference, predicted))
        same.append(predicted.argmax(axis=1) == reference.argmax(axis=1))
    apart = np.concatenate(divergences)
    return Comparison(
        model=_mean(losses[0]),
        base=_mean(losses[1]),
        mean_divergence=float(apart.mean()),
        largest_divergence=float(apart.max()),
        same_top=float(np.concatenate(same).mean()),
        loss_error=_standard_error(np.concatenate(losses[0]) - np.concatenate(losses[1])),
        divergence_error=_standard_error(apart),
    )


def _losses(logs: F32, part: Sequence[int]) -> F64:
    return -logs[np.arange(len(logs)), part[1:]].astype(np.float64)


def _mean(losses: Sequence[F64]) -> Perplexity:
    together = np.concatenate(losses)
    mean = float(together.mean())
    if not mean <= _MAX_LOSS:  # also where it is not a number
        raise GenerationError(
            "the model's loss is too large to compute a perplexity",
            expected=f"at most {_MAX_LOSS:g} nats per token",
            found=f"{mean:g}",
            hint="the weights may be damaged: validate the package with `deep` to check them",
        )
    return Perplexity(len(together), len(losses), mean)


def _standard_error(values: F64) -> float:
    """Return the standard error of the mean of `values`."""
    return float(values.std() / np.sqrt(len(values)))


def windows(
    ids: Sequence[int], window: int, progress: ProgressCallback | None
) -> Iterator[Sequence[int]]:
    """Yield the windows of a text, and report each once it is done.

    Raises:
        UsageError: `window` is smaller than two tokens.
    """
    if window < 2:
        raise UsageError("`window` is too small", expected="2 tokens or more", found=window)
    # A last window of a single token would have nothing to predict.
    for first in range(0, len(ids) - 1, window):
        part = ids[first : first + window]
        yield part
        if progress is not None:
            progress(first + len(part), len(ids))


def token_ids(model: Model, text: str | Sequence[int], limit: int | None) -> list[int]:
    """Return the first `limit` tokens of a text.

    Raises:
        UsageError: The text is shorter than two tokens.
    """
    ids = model.encode(text) if isinstance(text, str) else list(text)
    ids = ids[:limit]
    if len(ids) < 2:
        raise UsageError("the text is too short", expected="2 tokens or more", found=len(ids))
    return ids


def _check_same_tokens(
    model: Model, base: Model, text: str | Sequence[int], limit: int | None, ids: list[int]
) -> None:
    sizes = [side.package.manifest.architecture.vocab_size for side in (model, base)]
    if sizes[0] != sizes[1] or token_ids(base, text, limit) != ids:
        raise UsageError(
            "the tokenizers of the two packages differ",
            where=base.package.where,
            expected=f"the vocabulary of {model.package.where}",
            found=f"{sizes[1]} tokens beside {sizes[0]}" if sizes[0] != sizes[1] else "other ids",
        )


@dataclass(frozen=True)
class EmbeddingSimilarity:
    """How alike the embeddings of two packages are on the same texts.

    Attributes:
        texts: Number of texts.
        least: Smallest cosine similarity of the two embeddings of a text.
        mean: Mean of the similarities.
    """

    texts: int
    least: float
    mean: float


def compare_embeddings(
    first: Model, second: Model, texts: Sequence[str] = SENTENCES
) -> EmbeddingSimilarity:
    """Return how alike the embeddings of two models are, such as of one model in two types.

    Args:
        first: An embedding model.
        second: Another one with the same width.
        texts: The texts; sentences in several languages and scripts by default.

    Raises:
        ManifestError: A model makes no embeddings.
        UsageError: There are no texts, or the widths differ.
    """
    vectors = [
        np.asarray(model.embed(texts, truncate=True), np.float64) for model in (first, second)
    ]
    if not texts or vectors[0].shape != vectors[1].shape:
        raise UsageError(
            "the embeddings cannot be compared",
            expected="texts, and one width",
            found=", ".join(str(rows.shape) for rows in vectors),
        )
    norms = np.prod([np.linalg.norm(rows, axis=1) for rows in vectors], axis=0)
    cosines = (vectors[0] * vectors[1]).sum(axis=1) / norms
    return EmbeddingSimilarity(len(texts), float(cosines.min()), float(cosines.mean()))
