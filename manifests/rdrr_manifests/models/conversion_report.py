"""`conversion-report.json`: how a conversion stored every tensor, and the error of doing so.

The report is a file next to the manifest, and nothing depends on it: a package without a report is
just as valid. It contains no durations, paths or dates, and numbers are rounded to six digits, so
that the same input and options give the same bytes.
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
"""Bounds on parsing a report; the report of a model with 50,000 experts has half as many values."""


_LARGEST = 1 << 60
Count = Annotated[int, Field(ge=0, lt=_LARGEST)]
Error = Annotated[float, Field(ge=0, le=1e30)]
"""A relative error, which is normally below 1."""

Cosine = Annotated[float, Field(ge=-1, le=1)]

Perplexity = Annotated[float, Field(ge=0, le=1e305)]

Name = Annotated[str, Field(max_length=4096)]


class ReportedSource(ManifestModel):
    """A tensor of the checkpoint.

    Attributes:
        name: Its name there.
        dtype: Its storage type there.
    """

    name: str
    dtype: str


class ReportedBlock(ManifestModel):
    """The block of a tensor with the largest relative error.

    Attributes:
        row: Stored row that contains the block.
        block: Index of the block in that row; for scalar types, 256 values count as a block.
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) within the block.
    """

    row: Count
    block: Count
    relative_rmse: Error


class ReportedTensor(ManifestModel):
    """How one tensor was stored.

    Attributes:
        name: Name in the package.
        role: Function of the tensor in the model.
        group: Component that the tensor belongs to.
        layout: `row`, `column` or `flat`.
        sources: The checkpoint's tensors that it consists of, in order along N.
        shape: Logical shape.
        dtype: Storage type, as spelled in the manifest.
        why: Reason for the storage type.
        bytes: Stored bytes.
        padding: Stored weights that only pad rows to whole blocks.
        overflowed: Whether it was kept in F32 because a value exceeds the range of the wanted type.
        relative_rmse: sqrt(sum (stored - source)^2 / sum source^2) of the stored values.
        worst_block: The block with the largest relative error; None if nothing was lost.
        divergence: Estimate of the divergence that its error causes, in nats a token; None if the
            types were not chosen by measured error.
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
    divergence: Error | None = None


class ReportedTotal(ManifestModel):
    """The sums over all tensors of one storage type.

    Attributes:
        tensors: Number of tensors.
        weights: Number of weights, without padding.
        bytes: Stored bytes.
        relative_rmse: The largest of the tensors' relative errors.
    """

    tensors: Count
    weights: Count
    bytes: Count
    relative_rmse: Error


class ReportedDivergence(ManifestModel):
    """How far the predictions of a package are from those of its source.

    Attributes:
        mean: Mean Kullback-Leibler divergence, in nats a token.
        standard_error: Standard error of `mean`.
        same_top: Fraction of the tokens at which both find the same token most probable.
        perplexity: Perplexity of the package.
        bytes: Bytes of all its shards; None in reports of earlier versions.
    """

    mean: Error
    standard_error: Error
    same_top: float = Field(ge=0, le=1)
    perplexity: Perplexity
    bytes: Count | None = None


class ReportedMeasurement(ManifestModel):
    """What the option `measure` measured on a text.

    Attributes:
        tokens: Number of predicted tokens.
        is_chat: Whether the text was put into conversations by the package's chat template.
        source_perplexity: Perplexity of the source in float32.
        package: Divergence of the package.
        usual: Divergence of a package without the options for quality and size; None if none of
            them was given.
    """

    tokens: Count
    is_chat: bool = False
    source_perplexity: Perplexity
    package: ReportedDivergence
    usual: ReportedDivergence | None = None


class ReportedSimilarity(ManifestModel):
    """How alike the embeddings of a package are to those of its source, as cosine similarities.

    Attributes:
        mean: Mean over the texts.
        least: Smallest of a text.
    """

    mean: Cosine
    least: Cosine


class ReportedEmbeddings(ManifestModel):
    """What the option `measure` measured of a model that makes embeddings.

    Attributes:
        texts: Number of texts.
        package: Similarity of the package and the source in float32.
        usual: Similarity of a package without the options for quality and size; None if none of
            them was given.
    """

    texts: Count
    package: ReportedSimilarity
    usual: ReportedSimilarity | None = None


class ConversionReport(ManifestModel):
    """The whole report.

    Attributes:
        version: Version of the report's form.
        model_id: Name of the package.
        architecture: Name of the architecture file that the conversion used.
        source_format: Format of the checkpoint.
        tool: Name and version of the program that wrote the package.
        options: Options of the conversion, as in the manifest.
        parameters: Weights of the model, without padding.
        total_size: Bytes of all shards.
        padding: Stored weights that only pad rows to whole blocks.
        by_dtype: Sums over the tensors by storage type, the type with most bytes first.
        notes: Remarks for the user.
        measured: Divergence from the source, or similarity of embeddings; None if it was not
            measured.
        tensors: The tensors in storage order.
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
    measured: ReportedMeasurement | ReportedEmbeddings | None = None
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
        """Return the report as JSON text, indented by two spaces, with a newline at the end."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse_report(raw: bytes, where: object) -> ConversionReport:
    """Parse the bytes of a report.

    Args:
        raw: Content of the file.
        where: The file, for error messages.

    Raises:
        FormatError: The bytes are not a report, or a report of another version.
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
            "the conversion report has another version",
            where=where,
            expected=REPORT_VERSION,
            found=report.version,
            hint="use a newer rdrr",
        )
    return report
