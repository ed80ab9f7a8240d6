"""Blocks that identify a package: its shards, its quantization, and its conversion."""

from __future__ import annotations

from pydantic import Field

from rdrr_manifests.models.base import ManifestModel


class QuantizationInfo(ManifestModel):
    """The storage type of each group of weights, in the short names of the public format.

    Attributes:
        weights: Type of the matmul weights, such as `q4k`, `q8_0` or `f16`.
        embeddings: Type of the token embedding.
        lm_head: Type of the output head if it is a separate tensor.
        per_layer_embeddings: Type of the table of embeddings of each layer, if there is one.
        vision: Type of the matmul weights of the vision tower, if there is one.
        compute: Type of the activations at run time, `f16` or `f32`.
        layout: Layout of the block-quantized matmul weights, `row` or `col`.
        variant_tag: The names above as one tag, such as `q4k-ehf16-af32`.
    """

    weights: str
    embeddings: str | None = None
    lm_head: str | None = None
    per_layer_embeddings: str | None = None
    vision: str | None = None
    compute: str | None = None
    layout: str | None = None
    variant_tag: str | None = None


class Shard(ManifestModel):
    """One shard file.

    Attributes:
        index: Position in the list, counted from 0.
        filename: File name within the package's folder, never a path.
        size: Bytes of the file.
        hash: Hash of the file, 64 hexadecimal digits.
        offset: Sum of the sizes of the shards before it.
        compression: `zstd` for a file in Zstandard's seekable format; None if not compressed.
        uncompressed_size: Bytes of the content of a compressed shard; the offsets of tensors refer
            to the content.
    """

    index: int = Field(ge=0)
    filename: str
    size: int = Field(ge=0)
    hash: str
    offset: int = Field(default=0, ge=0)
    compression: str | None = None
    uncompressed_size: int | None = Field(default=None, ge=0)

    @property
    def content_size(self) -> int:
        """Bytes of the content, which the offsets of tensors refer to."""
        return self.size if self.uncompressed_size is None else self.uncompressed_size


class Conversion(ManifestModel):
    """The conversion that wrote the package, without dates, hosts or paths, to be reproducible.

    Attributes:
        tool: Name of the program; `rdrr` for this project.
        version: Version of the program.
        options: Options of the conversion that affect the package.
        converted_at: Date of the conversion; written by other programs only.
    """

    tool: str
    version: str
    options: dict[str, object] = Field(default_factory=dict)
    converted_at: str | None = None
