"""The manifest's entry of a tensor: its logical shape, its storage type and its byte spans."""

from __future__ import annotations

from math import prod
from typing import Literal

from pydantic import Field
from rdrr_format.dtypes import DType, parse_dtype
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Geometry, Layout, geometry, parse_layout

from rdrr_manifests.models.base import ManifestModel

Role = Literal[
    "embedding", "lm_head", "norm", "matmul", "expert", "router", "bias", "conv", "other"
]
"""The roles that rdrr writes; other writers have further ones (vision, audio...)."""


class Span(ManifestModel):
    """A contiguous range of a tensor's bytes within one shard.

    Attributes:
        shard_index: Index of the shard.
        offset: First byte in the shard's content.
        size: Number of bytes.
    """

    shard_index: int = Field(ge=0)
    offset: int = Field(ge=0)
    size: int = Field(ge=0)


INTEGER_BITS = {"INT2": 2, "INT4": 4, "INT8": 8, "UINT8": 8}
"""Bits of the integers that the public format stores behind a `sourceTransform`."""


class SourceTransform(ManifestModel):
    """How integers that were copied from a source become the tensor's values when they are loaded.

    Attributes:
        kind: Name of the transform, such as `litert_axis_dequant`.
        source_dtype: Type of the stored integers, such as `INT4`.
        storage_shape: Shape in storage; None if it is the tensor's shape.
    """

    kind: str | None = None
    source_dtype: str | None = None
    storage_shape: tuple[int, ...] | None = None

    def stored_size(self, shape: tuple[int, ...]) -> int | None:
        """Return the stored bytes of a tensor of this shape; None for an unknown type."""
        bits = INTEGER_BITS.get((self.source_dtype or "").upper())
        return None if bits is None else -(-prod(self.storage_shape or shape) * bits // 8)


class Tensor(ManifestModel):
    """One entry of the tensor table.

    Attributes:
        shape: Logical shape; a matmul weight is [N, K] (outputs, inputs) in every layout.
        dtype: Storage type, as spelled in the manifest.
        size: Stored bytes, over all spans.
        role: Function of the tensor in the model.
        shard: Index of the shard that contains the whole tensor; None if `spans` is given.
        offset: First byte in that shard's content.
        spans: Byte spans in several shards, in order; None if one shard contains the tensor.
        group: Component that the tensor belongs to, such as `embed`, `layer.3` or `head`.
        layout: `row`, `column` or `flat`; None means row.
        original_shape: Shape before the storage was transformed, if it was.
        source_transform: How the stored integers become values of `dtype`; None if the values are
            stored as they are.
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
    source_transform: SourceTransform | None = None

    def parsed_dtype(self) -> DType:
        """Return the storage type.

        Raises:
            FormatError: The name of the type is unknown, or a `sourceTransform` makes the values.
        """
        dtype = parse_dtype(self.dtype)
        if self.source_transform is not None:
            kind, source = self.source_transform.kind, self.source_transform.source_dtype
            raise FormatError(
                "the stored integers cannot be decoded",
                expected=f"values of {dtype}",
                found=f"{source}, which sourceTransform {kind} would expand",
            )
        return dtype

    def parsed_layout(self) -> Layout:
        """Return the storage layout.

        Older writers omitted `flat`: a tensor without a layout whose size only fits `flat` has it.

        Raises:
            FormatError: The name of the layout or type is unknown.
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
        """Return the stored rows and bytes that follow from shape, dtype and layout."""
        return geometry(self.parsed_dtype(), self.shape, self.parsed_layout())

    def byte_spans(self) -> tuple[Span, ...]:
        """Return the byte spans of the tensor, whether the entry states spans or one shard."""
        if self.spans:
            return self.spans
        # Without validation: the rules report an impossible shard or offset.
        shard, offset = self.shard or 0, self.offset or 0
        return (Span.model_construct(shard_index=shard, offset=offset, size=self.size),)
