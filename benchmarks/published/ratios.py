"""Speed-ups of one variant over another, round by round, and whether they reach their gates.

A gate is the smallest median speed-up that passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _script import table
from rdrr.bench.figures import Spread

NOT_GATED = "software-adapter: P not gated"
"""Verdict on a software adapter, where performance (P) is printed and not judged."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one variant is as another, over alternating runs.

    Attributes:
        name: What is compared, as "fast over slow".
        spread: Median, least and most of the ratios of the rounds.
        gate: The smallest median that passes, or None.
        published: The ratio that the published system states, or None.
    """

    name: str
    spread: Spread
    gate: float | None = None
    published: float | None = None

    @staticmethod
    def between(
        name: str,
        slow: Sequence[float],
        fast: Sequence[float],
        *,
        gate: float | None = None,
        published: float | None = None,
    ) -> Ratio:
        """Divide the seconds of the slow variant by those of the fast one, round by round."""
        rounds = [a / b for a, b in zip(slow, fast, strict=True)]
        return Ratio(name, Spread.of(rounds), gate, published)

    def verdict(self, *, software: bool) -> str:
        """Return `pass` or `missed`; `NOT_GATED` on software adapters; empty without a gate."""
        if self.gate is None:
            return ""
        if software:
            return NOT_GATED
        return "pass" if self.spread.median >= self.gate else "missed"

    def as_dict(self, *, software: bool) -> dict[str, Any]:
        """Return the ratio and its verdict for JSON."""
        return {
            "name": self.name,
            **self.spread.as_dict(),
            "gate": self.gate,
            "published": self.published,
            "verdict": self.verdict(software=software),
        }


def show_ratios(ratios: Iterable[Mapping[str, Any]]) -> None:
    """Print ratios, as `Ratio.as_dict` returns them, with their gates and published ratios."""
    rows = [
        (
            ratio["name"],
            f"{ratio['median']:,.2f} ({ratio['least']:,.2f} to {ratio['most']:,.2f})",
            _two_digits(ratio["gate"]),
            _two_digits(ratio["published"]),
            ratio["verdict"],
        )
        for ratio in ratios
    ]
    if rows:
        table(("ratio", "median (least to most)", "gate", "published", ""), rows)


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
