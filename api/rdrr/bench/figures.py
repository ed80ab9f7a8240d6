"""Medians with their extremes, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The median and the extremes of several measurements of one thing."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return Spread(median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """Return the figures for JSON."""
        return {"median": self.median, "least": self.least, "most": self.most}

    def show(self, digits: int = 2) -> str:
        """Return the median, with the extremes in brackets."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.most:,.{digits}f})"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of the values that at least `percent` of them do not exceed."""
    ordered = sorted(values)
    index = -(-len(ordered) * percent // 100) - 1
    return ordered[max(0, int(index))]
