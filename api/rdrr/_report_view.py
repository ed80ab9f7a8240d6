"""A conversion report, counted for people: by storage type, by part and layer, worst first.

It holds the figures and where they go in a picture; words and colours are the commands' and the
template's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod, sqrt

from rdrr_format.errors import StoreError
from rdrr_manifests.locate import locate
from rdrr_manifests.models.conversion_report import (
    REPORT,
    REPORT_NAME,
    ConversionReport,
    ReportedTensor,
    parse_report,
)

_LAYER = re.compile(r".*?layers\.(?P<layer>\d{1,6})\.(?P<part>.+)\.(?P<ending>weight|bias)")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SMALL_ROLES = ("norm", "bias")


@dataclass(frozen=True)
class TypeTotal:
    """All tensors of one storage type.

    Attributes:
        dtype: The type.
        tensors: Their number.
        weights: Weights, padding not counted.
        bytes: Stored bytes.
        share: Part of the package's bytes, 0 to 1.
        bits: Stored bits for one weight.
        worst: Largest relative error of one tensor.
    """

    dtype: str
    tensors: int
    weights: int
    bytes: int
    share: float
    bits: float
    worst: float


@dataclass(frozen=True)
class Cell:
    """One part of one layer; the worst of its experts where it has several.

    Attributes:
        part: Row of the grid.
        layer: Column of the grid.
        tensor: The tensor that lost most.
        tensors: How many there are.
    """

    part: str
    layer: int
    tensor: ReportedTensor
    tensors: int

    @property
    def dtype(self) -> str:
        """Storage type."""
        return self.tensor.dtype

    @property
    def error(self) -> float:
        """Relative error of the tensor."""
        return self.tensor.relative_rmse

    @property
    def block_error(self) -> float:
        """Relative error of its worst block."""
        return block_error(self.tensor)


@dataclass(frozen=True)
class ReportView:
    """Everything that is shown.

    Attributes:
        report: What was written.
        types: Storage types, the one with most bytes first.
        parts: Rows of the grid, in the order of a layer.
        layers: Columns of the grid.
        cells: What is in it.
        outside: Tensors that belong to no layer, norms and biases left out.
        worst: Tensors by error, the largest first; those without one are left out.
        overflowed: Tensors kept in F32 because values do not fit the type asked for.
    """

    report: ConversionReport
    types: tuple[TypeTotal, ...]
    parts: tuple[str, ...]
    layers: tuple[int, ...]
    cells: tuple[Cell, ...]
    outside: tuple[ReportedTensor, ...]
    worst: tuple[ReportedTensor, ...]
    overflowed: tuple[ReportedTensor, ...]

    @property
    def bits(self) -> float:
        """Stored bits for one weight, over the whole package."""
        return 8 * self.report.total_size / max(1, self.report.parameters)

    @property
    def mean_error(self) -> float:
        """Root of the mean squared relative error, every weight counting alike."""
        tensors = self.report.tensors
        squares = sum(prod(one.shape) * one.relative_rmse**2 for one in tensors)
        return sqrt(squares / max(1, self.report.parameters))

    @property
    def largest_error(self) -> float:
        """Largest relative error of one tensor."""
        return max((one.relative_rmse for one in self.report.tensors), default=0.0)

    def row(self, part: str) -> tuple[Cell, ...]:
        """The cells of one part, by layer."""
        return tuple(cell for cell in self.cells if cell.part == part)


def block_error(tensor: ReportedTensor) -> float:
    """Relative error of a tensor's worst block; 0 where nothing was lost."""
    return tensor.worst_block.relative_rmse if tensor.worst_block else 0.0


def read_report(
    location: str | os.PathLike[str], *, follow_links: bool = False
) -> ConversionReport:
    """The report of a package.

    Args:
        location: The package's folder or URL.
        follow_links: Follow links that lead out of the package's folder.

    Raises:
        StoreError: There is no such package, or it has no report.
        FormatError: The report cannot be read.
    """
    place = locate(location, follow_links=follow_links)
    if not place.store.exists(REPORT_NAME):
        raise StoreError(
            f"the package has no {REPORT_NAME}",
            where=place.where,
            hint="rdrr convert writes one; convert the checkpoint again",
        )
    # One byte more than may be there shows that it is too large.
    content = place.store.read(REPORT_NAME, 0, REPORT.size + 1).tobytes()
    return parse_report(content, f"{place.where}/{REPORT_NAME}")


def view(report: ConversionReport) -> ReportView:
    """Count a report."""
    tensors = [one for one in report.tensors if one.role not in _SMALL_ROLES]
    cells = _cells(tensors)
    return ReportView(
        report=report,
        types=_types(report),
        parts=tuple(dict.fromkeys(cell.part for cell in cells)),
        layers=tuple(sorted({cell.layer for cell in cells})),
        cells=cells,
        outside=tuple(one for one in tensors if _LAYER.fullmatch(one.name) is None),
        worst=tuple(
            sorted(
                (one for one in report.tensors if one.relative_rmse),
                key=lambda one: (-one.relative_rmse, one.name),
            )
        ),
        overflowed=tuple(one for one in report.tensors if one.overflowed),
    )


def _types(report: ConversionReport) -> tuple[TypeTotal, ...]:
    total = max(1, sum(one.bytes for one in report.by_dtype.values()))
    return tuple(
        TypeTotal(
            dtype=dtype,
            tensors=one.tensors,
            weights=one.weights,
            bytes=one.bytes,
            share=one.bytes / total,
            bits=8 * one.bytes / max(1, one.weights),
            worst=one.relative_rmse,
        )
        for dtype, one in report.by_dtype.items()
    )


def _cells(tensors: Iterable[ReportedTensor]) -> tuple[Cell, ...]:
    groups: dict[tuple[str, int], list[ReportedTensor]] = {}
    for one in tensors:
        match = _LAYER.fullmatch(one.name)
        if match is not None:
            part = _EXPERT.sub(".experts.", f".{match['part']}").lstrip(".")
            groups.setdefault((part, int(match["layer"])), []).append(one)
    return tuple(_cell(part, layer, group) for (part, layer), group in groups.items())


def _cell(part: str, layer: int, group: Sequence[ReportedTensor]) -> Cell:
    return Cell(part, layer, max(group, key=lambda one: one.relative_rmse), len(group))
