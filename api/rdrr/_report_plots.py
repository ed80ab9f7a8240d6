"""The plots of a conversion report: size against divergence, and the tensors that cost most.

The page shows them as SVG, whose positions are computed here. A model card is Markdown, from which
the hub removes SVG, so there they are tables with bars of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_format.html_tables import html_text
from rdrr_manifests.models.conversion_report import ReportedDivergence, ReportedMeasurement

from rdrr._report_view import PACKAGES, ReportView
from rdrr._units import format_size

LISTED = 12
"""Tensors that the plot of the most costly ones shows."""

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 240, 80, 40, 26, 36
_ROW = 22
_LETTER = 7.4
"""Average width of a letter of a tensor's name, in SVG units."""
_TEXT_BAR = 24


@dataclass(frozen=True)
class Point:
    """A package in the plot of sizes; positions are in SVG units.

    Attributes:
        x: Its size.
        y: Its mean divergence.
        low: One standard error below it, but not below zero.
        high: One standard error above it.
        label: Name, size and divergence.
        anchor: Side of the point on which the label ends, `start` or `end`.
    """

    x: float
    y: float
    low: float
    high: float
    label: str
    anchor: str


@dataclass(frozen=True)
class SizePlot:
    """Size against divergence.

    Attributes:
        width: Width in SVG units.
        height: Height in SVG units.
        left: Position of the vertical axis.
        bottom: Position of the horizontal axis, where the divergence is zero.
        points: The packages.
        sizes: Labels of the horizontal axis: positions and texts.
        divergences: Labels of the vertical axis.
    """

    width: float
    height: float
    left: float
    bottom: float
    points: tuple[Point, ...]
    sizes: tuple[tuple[float, str], ...]
    divergences: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class CostBar:
    """A tensor in the plot of those that cost most; positions are in SVG units."""

    y: float
    width: float
    name: str
    dtype: str
    value: str


@dataclass(frozen=True)
class CostPlot:
    """The tensors with the largest estimated divergence.

    Attributes:
        width: Width in SVG units.
        height: Height in SVG units.
        left: Where the bars begin, behind the names.
        share: Fraction of the estimate of the whole package that the shown tensors have.
        bars: The tensors.
    """

    width: float
    height: float
    left: float
    share: float
    bars: tuple[CostBar, ...]


def size_plot(report: ReportView, width: float) -> SizePlot | None:
    """Return the plot of size against divergence; None if it was not measured."""
    packages = _measured(report)
    if not packages:
        return None
    sizes = [size for _, size, _ in packages]
    top = max(figures.mean + figures.standard_error for _, _, figures in packages) or 1.0
    middle = (min(sizes) + max(sizes)) / 2
    # Sizes that hardly differ are shown near each other.
    reach = max(0.6 * (max(sizes) - min(sizes)), 0.05 * middle)
    bottom = _HEIGHT - _BOTTOM

    def x(size: float) -> float:
        return round(_LEFT + (width - _LEFT - _RIGHT) * (0.5 + (size - middle) / (2 * reach)), 2)

    def y(divergence: float) -> float:
        return round(bottom - (bottom - _TOP) * max(0.0, divergence) / top, 2)

    points = tuple(
        Point(
            x=x(size),
            y=y(figures.mean),
            low=y(figures.mean - figures.standard_error),
            high=y(figures.mean + figures.standard_error),
            label=f"{name}: {format_size(size)}, {figures.mean:.3g} nats",
            anchor="start" if x(size) < width / 2 else "end",
        )
        for name, size, figures in packages
    )
    return SizePlot(
        width=width,
        height=_HEIGHT,
        left=_LEFT,
        bottom=bottom,
        points=points,
        sizes=tuple(
            (x(size), format_size(round(size))) for size in (middle - reach, middle, middle + reach)
        ),
        divergences=tuple((y(part * top), f"{part * top:.2g}") for part in (0, 0.5, 1)),
    )


def cost_plot(report: ReportView, width: float) -> CostPlot | None:
    """Return the plot of the tensors that cost most; None if no divergence was estimated."""
    costly = report.costly[:LISTED]
    if not costly:
        return None
    largest = costly[0].divergence or 1.0
    left = 12 + _LETTER * max(len(tensor.name) for tensor in costly)
    bars = tuple(
        CostBar(
            y=at * _ROW,
            width=round((width - left - 110) * (tensor.divergence or 0.0) / largest, 2),
            name=tensor.name,
            dtype=tensor.dtype,
            value=f"{tensor.divergence:.2g}",
        )
        for at, tensor in enumerate(costly)
    )
    return CostPlot(width, len(bars) * _ROW, round(left, 2), _share(report), bars)


def text_plots(report: ReportView) -> list[str]:
    """Return both plots as Markdown tables with bars, each with a blank line at its end."""
    lines: list[str] = []
    packages = _measured(report)
    if len(packages) > 1:
        largest = max(figures.mean for _, _, figures in packages) or 1.0
        lines += _head(("package", "size", "divergence"))
        lines += [
            f"| {name} | {format_size(size)} | {figures.mean:.3g} | "
            f"{_text_bar(figures.mean / largest)} |"
            for name, size, figures in packages
        ]
        lines.append("")
    costly = report.costly[:LISTED]
    if costly:
        largest = costly[0].divergence or 1.0
        lines += [
            f"The tensors that cost most, {100 * _share(report):.0f} % of the estimated divergence "
            "together:\n",
            *_head(("tensor", "stored as", "estimate")),
        ]
        lines += [
            f"| {html_text(tensor.name)} | {html_text(tensor.dtype)} | {tensor.divergence:.2g} | "
            f"{_text_bar((tensor.divergence or 0.0) / largest)} |"
            for tensor in costly
        ]
        lines.append("")
    return lines


def _head(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} | |", f"| --- |{' ---: |' * (len(columns) - 1)} --- |"]


def _text_bar(share: float) -> str:
    return "█" * max(1, round(_TEXT_BAR * share))


def _share(report: ReportView) -> float:
    total = sum(tensor.divergence or 0.0 for tensor in report.costly)
    return sum(tensor.divergence or 0.0 for tensor in report.costly[:LISTED]) / (total or 1.0)


def _measured(report: ReportView) -> list[tuple[str, int, ReportedDivergence]]:
    """Return the name, the bytes and the divergence of each package that was measured."""
    measured = report.report.measured
    if not isinstance(measured, ReportedMeasurement):
        return []
    figures = zip(PACKAGES, (measured.package, measured.usual), strict=True)
    return [(name, part.bytes, part) for name, part in figures if part is not None and part.bytes]
