"""A tensor's entry: its logical shape, its storage and the bytes that hold it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from rdrr_format.dtypes import DType, parse_dtype
from rdrr_format.layouts import Geometry, Layout, geometry, parse_layout

from rdrr_manifests.models.base import ManifestModel

Role = Literal["embedding", "lm_head", "norm", "matmul", "expert", "router", "bias", "other"]
"""Roles that this project writes; other writers have further ones (conv, vision, audio...)."""


class Span(ManifestModel):
    """A run of a tensor's bytes inside one shard."""

    shard_index: int = Field(ge=0)
    offset: int = Field(ge=0)
    size: int = Field(ge=0)


class Tensor(ManifestModel):
    """One entry of the tensor table.

    Attributes:
        shape: Logical shape; a matmul weight is [N, K] (outputs, inputs) whatever its storage.
        dtype: Storage type in the manifest's spelling.
        size: Bytes, all spans together.
        role: What the tensor is for.
        shard: Shard that holds all of it; None when `spans` is given.
        offset: First byte in that shard.
        spans: Runs in several shards, in order.
        group: Component it belongs to, as `embed`, `layer.3`, `head`.
        layout: `row`, `column` or `flat`; None means row.
        original_shape: Shape before a storage transform, when one was made.
    """

    shape: tuple[int, ...]
    dtype: str
    size: int = Field(ge=0)
    role: str = "other"
    shard: int | None = None
    offset: int | None = None
    spans: tuple[Span, ...] | None = None
    group: str | None = None
    layout: str | None = None
    original_shape: tuple[int, ...] | None = None

    def parsed_dtype(self) -> DType:
        """The storage type.

        Raises:
            FormatError: The name is unknown.
        """
        return parse_dtype(self.dtype)

    def parsed_layout(self) -> Layout:
        """The storage order; `flat` where only that explains the size (older writers left it out).

        Raises:
            FormatError: The name is unknown.
        """
        dtype = self.parsed_dtype()
        layout = parse_layout(self.layout) if self.layout else Layout.ROW
        if self.layout is None and dtype.is_block:
            row = geometry(dtype, self.shape, Layout.ROW).size
            flat = geometry(dtype, self.shape, Layout.FLAT).size
            if self.size != row and self.size == flat:
                return Layout.FLAT
        return layout

    def geometry(self) -> Geometry:
        """Stored rows and bytes that shape, dtype and layout call for."""
        return geometry(self.parsed_dtype(), self.shape, self.parsed_layout())

    def byte_spans(self) -> tuple[Span, ...]:
        """The bytes' whereabouts as spans, whichever way the entry states them."""
        if self.spans:
            return self.spans
        # Not validated: a place that cannot be is the rules' to report.
        shard, offset = self.shard or 0, self.offset or 0
        return (Span.model_construct(shard_index=shard, offset=offset, size=self.size),)
