"""Statistics of a conversion report: by storage type, by part and layer, and the largest errors.

This module computes numbers. How they are drawn is decided by the commands and by the template of
the page.
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
    ReportedDivergence,
    ReportedEmbeddings,
    ReportedMeasurement,
    ReportedSimilarity,
    ReportedTensor,
    parse_report,
)

PACKAGES = ("this package", "without the options for quality and size")
"""Names of the packages of a measurement."""

_LAYER = re.compile(
    r"((?P<tower>visual\.)|.*?)layers\.(?P<layer>\d{1,6})\.(?P<part>.+)\.(?P<ending>weight|bias)"
)
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SMALL_ROLES = ("norm", "bias")


@dataclass(frozen=True)
class TypeTotal:
    """Totals over all tensors of one storage type.

    Attributes:
        dtype: The storage type.
        tensors: Number of tensors.
        weights: Number of weights, without padding.
        bytes: Stored bytes.
        share: Fraction of the bytes of the package, 0 to 1.
        bits: Stored bits per weight.
        worst: Largest relative error of a tensor.
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
    """One part of one layer, like `self_attn.q_proj` of layer 3.

    Attributes:
        part: Row of the grid.
        layer: Column of the grid.
        tensor: The tensor; the one with the largest error if there are several experts.
        tensors: Number of tensors.
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
        """Largest relative error of a block of the tensor."""
        return block_error(self.tensor)


@dataclass(frozen=True)
class ReportView:
    """The statistics of a conversion report.

    Attributes:
        report: The report.
        types: Totals of each storage type, most bytes first.
        parts: Rows of the grid, in their order within a layer.
        layers: Columns of the grid.
        cells: Cells of the grid.
        outside: Tensors outside the layers, without norms and biases.
        worst: Tensors with an error, largest error first.
        overflowed: Tensors kept in F32 because their values do not fit the requested type.
        costly: Tensors whose divergence was estimated, the largest first.
    """

    report: ConversionReport
    types: tuple[TypeTotal, ...]
    parts: tuple[str, ...]
    layers: tuple[int, ...]
    cells: tuple[Cell, ...]
    outside: tuple[ReportedTensor, ...]
    worst: tuple[ReportedTensor, ...]
    overflowed: tuple[ReportedTensor, ...]
    costly: tuple[ReportedTensor, ...]

    @property
    def bits(self) -> float:
        """Stored bits per weight, over the whole package."""
        return 8 * self.report.total_size / max(1, self.report.parameters)

    @property
    def mean_error(self) -> float:
        """Root mean square of the relative errors, weighted by the number of weights."""
        tensors = self.report.tensors
        squares = sum(prod(tensor.shape) * tensor.relative_rmse**2 for tensor in tensors)
        return sqrt(squares / max(1, self.report.parameters))

    @property
    def largest_error(self) -> float:
        """Largest relative error of one tensor."""
        return max((tensor.relative_rmse for tensor in self.report.tensors), default=0.0)

    def row(self, part: str) -> tuple[Cell, ...]:
        """Return the cells of one part, by layer."""
        return tuple(cell for cell in self.cells if cell.part == part)


def block_error(tensor: ReportedTensor) -> float:
    """Return the largest relative error of a block of a tensor; 0 if there is none."""
    return tensor.worst_block.relative_rmse if tensor.worst_block else 0.0


def read_report(
    location: str | os.PathLike[str], *, follow_links: bool = False
) -> ConversionReport:
    """Read the conversion report of a package.

    Args:
        location: Folder or URL of the package.
        follow_links: Follow links that lead out of the package's folder.

    Raises:
        StoreError: There is no such package, or it has no conversion report.
        FormatError: The report cannot be read.
    """
    place = locate(location, follow_links=follow_links)
    if not place.store.exists(REPORT_NAME):
        raise StoreError(
            f"the package has no {REPORT_NAME}",
            where=place.where,
            hint="convert the checkpoint again: a conversion writes the report",
        )
    # One byte more than the limit is enough to notice that the file is too large.
    content = place.store.read(REPORT_NAME, 0, REPORT.size + 1).tobytes()
    return parse_report(content, f"{place.where}/{REPORT_NAME}")


def view(report: ConversionReport) -> ReportView:
    """Return the statistics of a report."""
    tensors = [tensor for tensor in report.tensors if tensor.role not in _SMALL_ROLES]
    cells = _cells(tensors)
    return ReportView(
        report=report,
        types=_types(report),
        parts=tuple(dict.fromkeys(cell.part for cell in cells)),
        layers=tuple(sorted({cell.layer for cell in cells})),
        cells=cells,
        outside=tuple(tensor for tensor in tensors if _LAYER.fullmatch(tensor.name) is None),
        worst=tuple(
            sorted(
                (tensor for tensor in report.tensors if tensor.relative_rmse),
                key=lambda tensor: (-tensor.relative_rmse, tensor.name),
            )
        ),
        overflowed=tuple(tensor for tensor in report.tensors if tensor.overflowed),
        costly=tuple(
            sorted(
                (tensor for tensor in report.tensors if tensor.divergence),
                key=lambda tensor: (-(tensor.divergence or 0.0), tensor.name),
            )
        ),
    )


def measurement_lines(
    measured: ReportedMeasurement | ReportedEmbeddings | None,
) -> tuple[str, ...]:
    """Return a measurement as sentences, one for each package; nothing if nothing was measured."""
    if measured is None:
        return ()
    if isinstance(measured, ReportedEmbeddings):
        texts = measured.texts
        figures = [_alike(part, texts) for part in (measured.package, measured.usual) if part]
    else:
        parts = (measured.package, measured.usual)
        figures = [_divergence(part, measured) for part in parts if part]
    return tuple(f"{what}: {line}" for what, line in zip(PACKAGES, figures, strict=False))


def _alike(similarity: ReportedSimilarity, texts: int) -> str:
    return (
        f"cosine similarity of embeddings to those of the source {similarity.mean:.6f} on average, "
        f"{similarity.least:.6f} at least, over {texts:,} texts"
    )


def _divergence(figures: ReportedDivergence, measured: ReportedMeasurement) -> str:
    form = " in conversations" if measured.is_chat else ""
    return (
        f"mean divergence from the source {figures.mean:.4g} ± "
        f"{figures.standard_error:.2g} nats over {measured.tokens:,} tokens{form}, "
        f"same most probable token {100 * figures.same_top:.2f} %, "
        f"perplexity {figures.perplexity:.4f} (source {measured.source_perplexity:.4f})"
    )


def _types(report: ConversionReport) -> tuple[TypeTotal, ...]:
    total = max(1, sum(figures.bytes for figures in report.by_dtype.values()))
    return tuple(
        TypeTotal(
            dtype=dtype,
            tensors=figures.tensors,
            weights=figures.weights,
            bytes=figures.bytes,
            share=figures.bytes / total,
            bits=8 * figures.bytes / max(1, figures.weights),
            worst=figures.relative_rmse,
        )
        for dtype, figures in report.by_dtype.items()
    )


def _cells(tensors: Iterable[ReportedTensor]) -> tuple[Cell, ...]:
    groups: dict[tuple[str, int], list[ReportedTensor]] = {}
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match is not None:
            part = _EXPERT.sub(".experts.", f".{match['part']}").lstrip(".")
            part = (match["tower"] or "") + part  # its layers are not those of the text model
            groups.setdefault((part, int(match["layer"])), []).append(tensor)
    return tuple(_cell(part, layer, group) for (part, layer), group in groups.items())


def _cell(part: str, layer: int, group: Sequence[ReportedTensor]) -> Cell:
    return Cell(part, layer, max(group, key=lambda tensor: tensor.relative_rmse), len(group))
