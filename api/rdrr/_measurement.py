"""How far a finished package is from its source on a text: its predictions, or its embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from rdrr_format.errors import GenerationError, ManifestError, UsageError
from rdrr_format.locations import is_url, local_path
from rdrr_format.stores import replace_file, write_file
from rdrr_manifests.locate import locate
from rdrr_manifests.models.conversion_report import (
    REPORT_NAME,
    ReportedDivergence,
    ReportedEmbeddings,
    ReportedMeasurement,
    ReportedSimilarity,
)
from rdrr_manifests.package import open_package

from rdrr._loaded_package import has_head
from rdrr._model import Model
from rdrr._reference import opened_reference
from rdrr._report_view import read_report
from rdrr._sample_texts import SENTENCES
from rdrr.evaluate import (
    Comparison,
    EmbeddingSimilarity,
    compare,
    compare_embeddings,
    token_ids,
)

WINDOW, TOKENS = 256, 8192
"""Tokens of a window and of the whole measurement."""

BUNDLED = "sentences"
"""Value of `measure` for the sentences that come with rdrr."""


class Judge(Protocol):
    """The source of a conversion in float32, with which packages are compared."""

    def measure(
        self, package: str | Path, usual: str | Path | None
    ) -> ReportedMeasurement | ReportedEmbeddings:
        """Compare a package, and the one without options for quality and size, with the source."""


def bundled_text() -> str:
    """Return the sentences that come with rdrr, each on a line."""
    return "\n".join(SENTENCES)


def judge_of(plain: Path, text: str, device: str) -> Judge:
    """Return what compares packages with a source.

    Args:
        plain: Package of the source in F32.
        text: The text; each line is a text of its own for a model that makes embeddings.
        device: Device of torch that runs the models.

    Raises:
        UsageError: The model makes neither predictions of tokens nor embeddings of texts.
    """
    package = open_package(plain)
    output = package.manifest.inference.output
    pooling = output.embedding_postprocessor
    if pooling is not None and output.classifier is None and pooling.pooling_mode != "none":
        return EmbeddingJudge(plain, text, device)
    if not has_head(package):
        raise UsageError(
            "`measure` compares predictions of next tokens or embeddings of texts, and this model "
            "makes neither",
            found="results for each token" if output.classifier is None else "labels",
            hint="convert without `measure`, and compare its results on texts of yours",
        )
    return PredictionJudge(plain, text, device)


def spread(ids: Sequence[int], tokens: int, window: int) -> list[int]:
    """Return windows from all over a text, at most `tokens` in all, one after the other."""
    count = max(1, min(tokens, len(ids)) // window)
    step = len(ids) // count
    return [token for at in range(count) for token in ids[at * step : at * step + window]]


def chat_windows(model: Model, windows: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """Return windows of a text as conversations, by the chat template of a package.

    A user says the first quarter of a window, and the rest is the answer. The windows that are
    returned have one length, which is at most that of the given ones.

    Args:
        model: A model of the package.
        windows: Token ids of each window of the text.

    Returns:
        The token ids of each conversation; None if the package has no chat template, or one that
        refuses such messages or leaves no room for an answer.
    """
    conversations = []
    for window in windows:
        end = len(window) // 4
        message = {"role": "user", "content": model.decode(window[:end])}
        try:
            prompt = model._render_chat([message]).ids
        except (ManifestError, GenerationError):
            return None
        if len(prompt) > len(window) // 2:
            return None
        conversations.append([*prompt, *window[end:]])
    length = min(len(window) for window in (*windows, *conversations))
    return [conversation[:length] for conversation in conversations]


class PredictionJudge:
    """A source that predicts tokens, and those on which packages are compared with it.

    The tokens are those of conversations where the package has a chat template.

    Args:
        plain: Package of the source in F32.
        text: The text.
        device: Device of torch that runs the models.

    Raises:
        UsageError: The text has less than two tokens, or the model predicts none.
    """

    def __init__(self, plain: Path, text: str, device: str) -> None:
        self._plain, self._device = plain, device
        self._window = min(WINDOW, open_package(plain).manifest.architecture.max_seq_len)
        with self._load(plain) as (base, _):
            self._ids = spread(token_ids(base, text, None), TOKENS, self._window)
            size = min(self._window, len(self._ids))
            parts = [self._ids[at : at + size] for at in range(0, len(self._ids), size)]
            conversations = chat_windows(base, parts)
        self._is_chat = conversations is not None
        if conversations is not None:
            self._window = len(conversations[0])
            self._ids = [token for ids in conversations for token in ids]

    def measure(self, package: str | Path, usual: str | Path | None) -> ReportedMeasurement:
        """Return the divergences from the source, on the exact path."""
        compared = self._compare(package)
        return ReportedMeasurement(
            tokens=compared.model.tokens,
            is_chat=self._is_chat,
            source_perplexity=_rounded(compared.base.perplexity),
            package=_divergence(compared, package),
            usual=None if usual is None else _divergence(self._compare(usual), usual),
        )

    def _compare(self, package: str | Path) -> Comparison:
        with self._load(package) as (model, _), self._load(self._plain) as (base, _):
            return compare(model, base, self._ids, window=self._window)

    def _load(self, package: str | Path) -> AbstractContextManager[tuple[Model, object]]:
        return opened_reference(open_package(package), self._window, self._device)


class EmbeddingJudge:
    """A source that makes embeddings, and the texts on which packages are compared with it.

    Args:
        plain: Package of the source in F32.
        text: The texts, each on a line.
        device: Device of torch that runs the models.

    Raises:
        UsageError: There are none.
    """

    def __init__(self, plain: Path, text: str, device: str) -> None:
        self._plain, self._device = plain, device
        self._texts = [line for line in text.splitlines() if line.strip()]
        if not self._texts:
            raise UsageError(
                "the text to measure embeddings on is empty", expected="a text on each line"
            )

    def measure(self, package: str | Path, usual: str | Path | None) -> ReportedEmbeddings:
        """Return how alike embeddings are to those of the source."""
        return ReportedEmbeddings(
            texts=len(self._texts),
            package=_similarity(self._compare(package)),
            usual=None if usual is None else _similarity(self._compare(usual)),
        )

    def _compare(self, package: str | Path) -> EmbeddingSimilarity:
        with (
            opened_reference(open_package(package), None, self._device) as (model, _),
            opened_reference(open_package(self._plain), None, self._device) as (base, _),
        ):
            return compare_embeddings(model, base, self._texts)


def write_measurement(
    package: str | Path, measured: ReportedMeasurement | ReportedEmbeddings
) -> None:
    """Add a measurement to the conversion report of a package."""
    report = read_report(package).model_copy(update={"measured": measured})
    content = report.to_json().encode()
    if is_url(package):
        write_file(locate(package).store, REPORT_NAME, content)
    else:
        replace_file(local_path(package) / REPORT_NAME, content)


def _divergence(comparison: Comparison, package: str | Path) -> ReportedDivergence:
    return ReportedDivergence(
        # Rounding can make the divergence of equal predictions negative.
        mean=_rounded(max(0.0, comparison.mean_divergence)),
        standard_error=_rounded(comparison.divergence_error),
        same_top=_rounded(comparison.same_top),
        perplexity=_rounded(comparison.model.perplexity),
        bytes=open_package(package).manifest.total_size,
    )


def _similarity(similarity: EmbeddingSimilarity) -> ReportedSimilarity:
    # Rounding can take the similarity of equal vectors beyond 1. Six digits are what float32 has.
    mean, least = (round(min(1.0, cos), 6) for cos in (similarity.mean, similarity.least))
    return ReportedSimilarity(mean=mean, least=least)


def _rounded(value: float) -> float:
    """Round to five digits, so that machines that sum in another order write the same report."""
    return float(f"{value:.5g}")
