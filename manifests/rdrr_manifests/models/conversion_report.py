"""`conversion-report.json`: what a conversion did to every tensor, and what that cost.

It lies beside the manifest and nothing depends on it: a package without one is as valid. It holds
no timing, path or clock, and figures are rounded to six digits, so that the same input and
options give the same bytes.
"""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator
from rdrr_format.bounded_json import JsonBounds, check_bounds
from rdrr_format.errors import FormatError

from rdrr_manifests.models.base import ManifestModel

REPORT_NAME = "conversion-report.json"
REPORT_VERSION = 1
REPORT = JsonBounds(size=64 << 20, values=1 << 21, depth=16)
"""What a report may cost to read; one on 50,000 experts takes half of it."""


_LARGEST = 1 << 60
Count = Annotated[int, Field(ge=0, lt=_LARGEST)]
Error = Annotated[float, Field(ge=0, le=1e30)]
"""A relative error; what is lost is hardly ever more than what was there."""

Name = Annotated[str, Field(max_length=4096)]


class ReportedSource(ManifestModel):
    """A tensor of the checkpoint, by its name and storage type there."""

    name: str
    dtype: str


class ReportedBlock(ManifestModel):
    """The block of a tensor that lost most.

    Attributes:
        row: Stored row that it is in.
        block: Its place in that row; scalar types count runs of 256 values.
        relative_rmse: Root of its squared error over the source's squares, within the block.
    """

    row: Count
    block: Count
    relative_rmse: Error


class ReportedTensor(ManifestModel):
    """What became of one tensor.

    Attributes:
        sources: The checkpoint's tensors that it is made of, in order along N.
        shape: Logical shape.
        dtype: Storage type, in the words of the format.
        why: Reason for the type.
        bytes: Stored bytes.
        padding: Weights stored beyond those that carry meaning.
        overflowed: Kept in F32 because a value does not fit the type asked for.
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) of what is on disk.
        worst_block: None where nothing was lost.
    """

    name: Name
    role: str
    group: str | None = None
    sources: tuple[ReportedSource, ...]
    shape: tuple[Count, ...] = Field(max_length=64)
    dtype: str
    layout: str
    why: str
    bytes: Count
    padding: Count
    overflowed: bool = False
    relative_rmse: Error
    worst_block: ReportedBlock | None = None


class ReportedTotal(ManifestModel):
    """All tensors of one storage type.

    Attributes:
        relative_rmse: Largest of its tensors.
    """

    tensors: Count
    weights: Count
    bytes: Count
    relative_rmse: Error


class ConversionReport(ManifestModel):
    """The whole report.

    Attributes:
        architecture: Name of the architecture file that was used.
        source_format: Kind of checkpoint.
        tool: What made the package, with its version.
        options: As the manifest records them.
        parameters: Weights, padding not counted.
        total_size: Bytes of all shards.
        padding: Weights stored beyond those that carry meaning.
        by_dtype: Sums over the tensors, the type with most bytes first.
        notes: What the user should know.
        tensors: In storage order.
    """

    version: int = REPORT_VERSION
    model_id: str
    architecture: str
    source_format: str
    tool: str
    options: dict[str, Any]
    parameters: Count
    total_size: Count
    padding: Count
    by_dtype: dict[str, ReportedTotal]
    notes: tuple[str, ...] = ()
    tensors: tuple[ReportedTensor, ...]

    @model_validator(mode="after")
    def _check_tensors(self) -> ConversionReport:
        for tensor in self.tensors:
            if tensor.dtype not in self.by_dtype:
                raise ValueError(f"byDtype lacks {tensor.dtype}, which {tensor.name} has")
            if prod(tensor.shape) >= _LARGEST:
                raise ValueError(f"{tensor.name} has an impossible shape")
        return self

    def to_json(self) -> str:
        """The report's text: two spaces of indent, one trailing newline, keys in field order."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_report(raw: bytes, where: object) -> ConversionReport:
    """The report in a file's bytes.

    Raises:
        FormatError: They are not a report of a version that is known.
    """
    try:
        check_bounds(raw, REPORT)
    except FormatError as error:
        raise FormatError(
            error.message, where=where, expected=error.expected, found=error.found
        ) from error
    try:
        report = ConversionReport.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise FormatError(
            "not a conversion report", where=where, found=f"{field}: {first['msg']}".lstrip(": ")
        ) from error
    if report.version != REPORT_VERSION:
        raise FormatError(
            "a conversion report of another version",
            where=where,
            expected=REPORT_VERSION,
            found=report.version,
            hint="use a newer rdrr",
        )
    return report
