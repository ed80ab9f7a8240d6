"""How far the predictions of a finished package are from those of its source, on a text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rdrr_format.locations import is_url, local_path
from rdrr_format.stores import replace_file, write_file
from rdrr_manifests.locate import locate
from rdrr_manifests.models.conversion_report import (
    REPORT_NAME,
    ReportedDivergence,
    ReportedMeasurement,
)
from rdrr_manifests.package import open_package

from rdrr._load import load
from rdrr._model import Model
from rdrr._report_view import read_report
from rdrr.evaluate import Comparison, compare, token_ids

WINDOW, TOKENS = 256, 8192
"""Tokens of a window and of the whole measurement."""


def spread(ids: Sequence[int], tokens: int, window: int) -> list[int]:
    """Return windows from all over a text, at most `tokens` in all, one after the other."""
    count = max(1, min(tokens, len(ids)) // window)
    step = len(ids) // count
    return [token for at in range(count) for token in ids[at * step : at * step + window]]


class Judge:
    """The source of a conversion in float32, and the tokens on which packages are compared with it.

    Args:
        plain: Package of the source in F32.
        text: The text.

    Raises:
        UsageError: The text has less than two tokens, or the model predicts none.
    """

    def __init__(self, plain: Path, text: str) -> None:
        self._plain = plain
        self._window = min(WINDOW, open_package(plain).manifest.architecture.max_seq_len)
        with closing(self._load(plain)) as base:
            self._ids = spread(token_ids(base, text, None), TOKENS, self._window)

    def compare(self, package: str | Path) -> Comparison:
        """Compare a package with the source, on the exact path of the CPU."""
        with closing(self._load(package)) as model, closing(self._load(self._plain)) as base:
            return compare(model, base, self._ids, window=self._window)

    def _load(self, package: str | Path) -> Model:
        return load(package, backend="cpu", context=self._window)


def measurement(package: Comparison, usual: Comparison | None) -> ReportedMeasurement:
    """Return what the report says of a package, and of the one that it is compared with."""
    return ReportedMeasurement(
        tokens=package.model.tokens,
        source_perplexity=_rounded(package.base.perplexity),
        package=_divergence(package),
        usual=usual and _divergence(usual),
    )


def write_measurement(package: str | Path, measured: ReportedMeasurement) -> None:
    """Add a measurement to the conversion report of a package."""
    report = read_report(package).model_copy(update={"measured": measured})
    content = report.to_json().encode()
    if is_url(package):
        write_file(locate(package).store, REPORT_NAME, content)
    else:
        replace_file(local_path(package) / REPORT_NAME, content)


def _divergence(comparison: Comparison) -> ReportedDivergence:
    return ReportedDivergence(
        # Rounding can make the divergence of equal predictions negative.
        mean=_rounded(max(0.0, comparison.mean_divergence)),
        standard_error=_rounded(comparison.divergence_error),
        same_top=_rounded(comparison.same_top),
        perplexity=_rounded(comparison.model.perplexity),
    )


def _rounded(value: float) -> float:
    """Round to five digits, so that machines that sum in another order write the same report."""
    return float(f"{value:.5g}")
