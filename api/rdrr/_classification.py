"""Classification: the probabilities of a text's labels, from the head of a classifying model.

The logits are those of transformers' `ForSequenceClassification`: a linear layer on the hidden
state of the last token. A reranking model of this kind has one label, whose probability is a score,
or the labels `yes` and `no`, which answer the question whether a text fits a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError, ManifestError

from rdrr._embedding import Pooling

if TYPE_CHECKING:
    from rdrr_manifests.models import Classifier
    from rdrr_manifests.package import Package

ANSWERS = ("yes", "no")
"""The labels of a head that has the two answers to a reranking model's question."""

F32 = npt.NDArray[np.float32]


def classifier_of(package: Package) -> Classifier | None:
    """Return the labels of a model that classifies texts; None for other models."""
    return package.manifest.inference.output.classifier


class Classification:
    """The head of a package that classifies texts.

    Args:
        package: The package.

    Raises:
        ManifestError: It does not classify texts.
    """

    def __init__(self, package: Package) -> None:
        classifier = classifier_of(package)
        if classifier is None:
            raise ManifestError(
                "this package does not classify texts: it has no labels",
                where=package.where,
                expected="inference.output.classifier",
                hint="convert a checkpoint of a class ForSequenceClassification",
            )
        self._pooling, self._classifier, self._where = Pooling(package), classifier, package.where
        if self._pooling.width != len(classifier.labels):
            raise ManifestError(
                "the labels do not fit the classification head",
                where=f"{package.where}, inference.output.classifier.labels",
                expected=f"{self._pooling.width} labels",
                found=len(classifier.labels),
            )

    @property
    def part(self) -> slice:
        """The tokens of a text whose hidden states are averaged."""
        return self._pooling.part()

    def probabilities(self, mean: F32) -> dict[str, float]:
        """Return the probability of each label of one text, or its logits in a regression.

        Args:
            mean: Mean of the hidden states of `part`, [hidden size].
        """
        return self._named(self._pooling.finish(mean))

    def check_pools(self, *, by_token: bool = False) -> None:
        """Check that a text has labels, or with `by_token` each of its tokens; see `Pooling`."""
        self._pooling.check_pools(by_token=by_token)

    def of_tokens(self, rows: F32) -> list[dict[str, float]]:
        """Return the probability of each label of each token.

        Args:
            rows: Hidden states, [tokens, hidden size].
        """
        return [self._named(logits) for logits in self._pooling.project(rows)]

    def _named(self, row: F32) -> dict[str, float]:
        """Return the probabilities of logits, by the names of the labels."""
        logits = row.astype(np.float64)
        if self._classifier.activation == "softmax":
            powers = np.exp(logits - logits.max())
            values = powers / powers.sum()
        elif self._classifier.activation == "sigmoid":
            values = np.exp(-np.logaddexp(0.0, -logits))
        else:
            values = logits
        return dict(zip(self._classifier.labels, map(float, values), strict=True))

    def check_ranks(self) -> None:
        """Check that the head gives one score for a text.

        Raises:
            ManifestError: It has several labels, other than the answers `yes` and `no`.
        """
        self.check_pools()
        if len(self._classifier.labels) != 1 and not self.has_answers:
            raise ManifestError(
                "this model cannot rank: its classification head has several labels",
                where=self._where,
                expected="1 label, or yes and no",
                found=", ".join(self._classifier.labels),
                hint="use `classify`",
            )

    @property
    def has_answers(self) -> bool:
        """Whether its labels are the two answers to a question, which the model is then asked."""
        return self._classifier.labels == ANSWERS and self._classifier.activation == "softmax"

    def score(self, mean: F32) -> float:
        """Return the one score of a text, which is that of the first label."""
        return self.probabilities(mean)[self._classifier.labels[0]]


class MaskHead:
    """The head of a package that fills in masked tokens.

    Args:
        package: The package.

    Raises:
        ManifestError: It fills in no masks.
    """

    def __init__(self, package: Package) -> None:
        manifest = package.manifest
        mask, rows = manifest.mask_token_id, manifest.architecture.vocab_size
        self._pooling = Pooling(package)
        is_head = self._pooling.by_token and self._pooling.width == rows
        if mask is None or not is_head or classifier_of(package) is not None:
            raise ManifestError(
                "this package fills in no masked tokens",
                where=package.where,
                expected="a head with a row for each token, and maskTokenId",
                hint="convert a checkpoint of a class ForMaskedLM",
            )
        self._mask = mask

    def places(self, ids: Sequence[int]) -> list[int]:
        """Return the places of the masks among token ids.

        Raises:
            GenerationError: There are none.
        """
        places = [place for place, token_id in enumerate(ids) if token_id == self._mask]
        if not places:
            raise GenerationError(
                "a text has no mask",
                expected=f"a token with the id {self._mask}",
                found=f"{len(ids)} other tokens",
            )
        return places

    def most_probable(
        self, rows: F32, count: int, token: Callable[[int], str | None]
    ) -> list[dict[str, float]]:
        """Return the most probable tokens of each mask with their probabilities.

        Args:
            rows: Hidden states of the masks, [masks, hidden size].
            count: Number of tokens.
            token: Returns the text of a token.
        """
        logits = self._pooling.project(rows).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = powers / powers.sum(axis=-1, keepdims=True)
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :count]
        return [
            {token(int(index)) or f"#{index}": float(row[index]) for index in indices}
            for row, indices in zip(probabilities, best, strict=True)
        ]
