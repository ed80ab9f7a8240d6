"""Medians with their extremes, percentiles, and whether a ratio reaches its gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

NOT_GATED = "software-adapter: P not gated"


@dataclass(frozen=True)
class Spread:
    """The middle and the extremes of several measurements of one thing."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return Spread(median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return {"median": self.median, "least": self.least, "most": self.most}

    def show(self, digits: int = 2) -> str:
        """Median, with the extremes in brackets."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.most:,.{digits}f})"


def percentile(values: Sequence[float], percent: float) -> float:
    """The least of the values that `percent` of them do not exceed."""
    ordered = sorted(values)
    index = -(-len(ordered) * percent // 100) - 1
    return ordered[max(0, int(index))]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one thing is as another, over interleaved runs.

    Attributes:
        name: What is compared.
        spread: Of the ratios of the rounds.
        gate: The least that the median is to reach, or None.
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
        """Seconds of the slow thing over those of the fast one, round by round."""
        rounds = [a / b for a, b in zip(slow, fast, strict=True)]
        return Ratio(name, Spread.of(rounds), gate, published)

    def verdict(self, *, software: bool) -> str:
        """`pass`, `missed`, that the adapter is none to gate on, or nothing without a gate."""
        if self.gate is None:
            return ""
        if software:
            return NOT_GATED
        return "pass" if self.spread.median >= self.gate else "missed"

    def as_dict(self, *, software: bool) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            **self.spread.as_dict(),
            "gate": self.gate,
            "published": self.published,
            "verdict": self.verdict(software=software),
        }
