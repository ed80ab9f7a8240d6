"""What a conversion reports at its end.

`describe_conversion` makes the report that is written into the package as
`conversion-report.json`. Timings are not measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

from rdrr_format.codecs import CODECS
from rdrr_format.html_tables import rows_table
from rdrr_manifests.models import Manifest
from rdrr_manifests.models.conversion_report import (
    ConversionReport,
    ReportedBlock,
    ReportedEmbeddings,
    ReportedMeasurement,
    ReportedSource,
    ReportedTensor,
    ReportedTotal,
)

from rdrr_converter.encode.measure import ErrorStats, WorstBlock
from rdrr_converter.plan import ConversionPlan, PlannedTensor


@dataclass(frozen=True)
class TensorReport:
    """The result of the conversion of one tensor.

    Attributes:
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) of the tensor on disk; None in
            a dry run.
        worst_block: The block with the largest relative error; None in a dry run and if every
            value is exact.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    size: int
    padding: int
    why: str
    relative_rmse: float | None
    worst_block: WorstBlock | None = None

    @classmethod
    def of(cls, tensor: PlannedTensor, error: ErrorStats | None) -> TensorReport:
        """Return the report on a planned tensor, with its error if it was written."""
        return cls(
            name=tensor.name,
            shape=tensor.shape,
            dtype=tensor.dtype.name,
            layout=tensor.layout.value,
            size=tensor.size,
            padding=tensor.geometry.padding,
            why=tensor.why,
            relative_rmse=None if error is None else error.relative_rmse,
            worst_block=None if error is None else error.worst,
        )


@dataclass(frozen=True, repr=False)
class ConversionResult:
    """The result of a conversion, or of a dry run.

    Attributes:
        destination: Path or URL of the package.
        model_id: Name of the package.
        architecture: Name of the architecture file that was used.
        dry_run: Whether nothing was written.
        total_size: Size of all shards on disk in bytes; in a dry run, their uncompressed size.
        plan: The plan of the package.
        tensors: The result for each tensor.
        overflowed: Names of tensors kept in F32 because a value does not fit the requested type.
        notes: Notes for the user.
        reused_shards: Number of shards reused from an interrupted conversion. The package does
            not depend on it.
        encoded_blocks: Number of blocks that each device encoded, by its name. The package does
            not depend on it.
        measured: How far the package is from its source; None without the option `measure`.
    """

    destination: str | Path
    model_id: str
    architecture: str
    dry_run: bool
    total_size: int
    plan: ConversionPlan
    tensors: tuple[TensorReport, ...]
    overflowed: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    reused_shards: int = 0
    encoded_blocks: Mapping[str, int] = field(default_factory=dict)
    measured: ReportedMeasurement | ReportedEmbeddings | None = None

    def __repr__(self) -> str:
        size = f"{len(self.tensors)} tensors, {self.total_size:,} bytes"
        return f"<ConversionResult {self.model_id!r} ({self.architecture}): {size}>"

    def _repr_html_(self) -> str:
        """Return a table of the storage types for notebooks."""
        rows = [(dtype, count, f"{size:,}") for dtype, (count, size) in self.by_dtype().items()]
        return rows_table(repr(self), ("type", "tensors", "bytes"), rows)

    @property
    def parameters(self) -> int:
        """Number of weights without padding."""
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def padding(self) -> int:
        """Number of stored weights that are padding."""
        return sum(tensor.padding for tensor in self.tensors)

    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """Return the number of tensors and of bytes of each storage type, largest first."""
        totals: dict[str, tuple[int, int]] = {}
        for tensor in self.tensors:
            count, size = totals.get(tensor.dtype, (0, 0))
            totals[tensor.dtype] = (count + 1, size + tensor.size)
        return dict(sorted(totals.items(), key=lambda item: -item[1][1]))

    def as_dict(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {
            "destination": str(self.destination),
            "model_id": self.model_id,
            "architecture": self.architecture,
            "dry_run": self.dry_run,
            "parameters": self.parameters,
            "total_size": self.total_size,
            "shards": len(self.plan.shard_sizes),
            "reused_shards": self.reused_shards,
            "encoded_blocks": dict(self.encoded_blocks),
            "padding": self.padding,
            "by_dtype": {
                dtype: {"tensors": count, "bytes": size}
                for dtype, (count, size) in self.by_dtype().items()
            },
            "overflowed": list(self.overflowed),
            "notes": list(self.notes),
            "measured": self.measured and self.measured.model_dump(mode="json"),
            "tensors": [
                {
                    **row,
                    "relative_rmse": report.relative_rmse,
                    "worst_block": report.worst_block and asdict(report.worst_block),
                }
                for row, report in zip(self.plan.describe(), self.tensors, strict=True)
            ],
        }


def requantization_notes(plan: ConversionPlan, errors: Mapping[str, ErrorStats]) -> tuple[str, ...]:
    """Return a warning with the loss for each type of the source whose blocks were encoded again.

    Args:
        plan: The plan.
        errors: Error of each tensor, relative to the values of the source.
    """
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for tensor in plan.tensors:
        if tensor.dequantized_from and tensor.dtype.is_block and tensor.name in errors:
            key = " and ".join(tensor.dequantized_from), tensor.dtype.name
            loss = errors[tensor.name].relative_rmse
            groups.setdefault(key, []).append((tensor.weights, loss * loss))
    warnings = (_warning(*key, losses) for key, losses in sorted(groups.items()))
    return tuple(filter(None, warnings))


def _warning(before: str, after: str, losses: Sequence[tuple[int, float]]) -> str:
    """Return the warning for one pair of types; an empty string if nothing was lost.

    Args:
        before: Type in the source.
        after: Type in the package.
        losses: Number of weights and mean square of the relative error of each tensor.
    """
    weights = sum(count for count, _ in losses)
    loss = (sum(count * square for count, square in losses) / weights) ** 0.5
    if not loss:
        return ""
    way = "`quantize` f16 stores them as they are"
    if before in CODECS:
        options = "`quantize`, `transpose_weights`, `q4k_layout` and `profile`"
        way = f"without {options} the blocks of the source are copied"
    return (
        f"warning: weights that the source has in {before} were quantized a second time, to {after}"
        f", and differ from those of the source by {100 * loss:.2g} % (root mean square); {way}"
    )


def describe_conversion(
    manifest: Manifest,
    architecture: str,
    plan: ConversionPlan,
    errors: Mapping[str, ErrorStats],
    notes: Sequence[str],
) -> ConversionReport:
    """Build the conversion report, which is written beside the manifest.

    Args:
        manifest: The manifest of the package.
        architecture: Name of the architecture file that was used.
        plan: The plan of the package.
        errors: Error of each tensor, by its name.
        notes: Notes for the user.
    """
    tensors = tuple(_reported(tensor, errors[tensor.name]) for tensor in plan.tensors)
    conversion = manifest.model_dump(mode="json", by_alias=True)["conversion"] or {}
    return ConversionReport(
        model_id=manifest.model_id,
        architecture=architecture,
        source_format=str(manifest.metadata.get("sourceFormat", "")),
        tool=f"{conversion.get('tool')} {conversion.get('version')}",
        options=conversion.get("options") or {},
        parameters=sum(tensor.weights for tensor in plan.tensors),
        total_size=manifest.total_size,
        padding=sum(tensor.padding for tensor in tensors),
        by_dtype=_totals(tensors),
        notes=tuple(notes),
        tensors=tensors,
    )


def _reported(tensor: PlannedTensor, error: ErrorStats) -> ReportedTensor:
    return ReportedTensor(
        name=tensor.name,
        role=tensor.role,
        group=tensor.group,
        sources=tuple(
            ReportedSource(name=source.name, dtype=source.dtype) for source in tensor.sources
        ),
        shape=tensor.shape,
        dtype=tensor.dtype.name,
        layout=tensor.layout.value,
        why=tensor.why,
        bytes=tensor.size,
        padding=tensor.geometry.padding,
        overflowed=tensor.overflowed,
        relative_rmse=_rounded(error.relative_rmse),
        worst_block=error.worst
        and ReportedBlock(
            row=error.worst.row,
            block=error.worst.block,
            relative_rmse=_rounded(error.worst.relative_rmse),
        ),
        divergence=None if tensor.divergence is None else _rounded(tensor.divergence),
    )


def _totals(tensors: Sequence[ReportedTensor]) -> dict[str, ReportedTotal]:
    totals: dict[str, ReportedTotal] = {}
    for dtype in {tensor.dtype for tensor in tensors}:
        group = [tensor for tensor in tensors if tensor.dtype == dtype]
        totals[dtype] = ReportedTotal(
            tensors=len(group),
            weights=sum(prod(tensor.shape) for tensor in group),
            bytes=sum(tensor.bytes for tensor in group),
            relative_rmse=max(tensor.relative_rmse for tensor in group),
        )
    return dict(sorted(totals.items(), key=lambda item: (-item[1].bytes, item[0])))


def _rounded(error: float) -> float:
    """Round to six digits, so that machines that sum in another order write the same report."""
    return float(f"{error:.6g}")
