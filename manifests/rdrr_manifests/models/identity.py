"""Who a package is: its shards, its quantization in words, and where it came from."""

from __future__ import annotations

from pydantic import Field

from rdrr_manifests.models.base import ManifestModel


class QuantizationInfo(ManifestModel):
    """The quantization of each group of weights, in the short words of the public format.

    Attributes:
        weights: Matmul weights, such as `q4k`, `q8_0`, `f16`.
        embeddings: Token embedding.
        lm_head: Output head when it is a tensor of its own.
        compute: Activations while running, `f16` or `f32`.
        layout: `row` or `col`, the layout of the block-quantized matmul weights.
        variant_tag: The words above as one tag, as in `q4k-ehf16-af32`.
    """

    weights: str
    embeddings: str | None = None
    lm_head: str | None = None
    compute: str | None = None
    layout: str | None = None
    variant_tag: str | None = None


class Shard(ManifestModel):
    """One shard file.

    Attributes:
        index: Position, counted from 0.
        filename: A name inside the package's folder, never a path.
        size: Bytes on disk.
        hash: Hex digest of the bytes on disk, 64 characters.
        offset: Sum of the sizes of the shards before it.
        compression: `zstd` for a file in Zstandard's seekable format; None for plain bytes.
        uncompressed_size: Bytes of a compressed shard's content, which tensors' offsets refer to.
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
        """Bytes that tensors' offsets refer to."""
        return self.size if self.uncompressed_size is None else self.uncompressed_size


class Conversion(ManifestModel):
    """What made the package, without clocks, hosts or paths, so that it is reproducible."""

    tool: str
    version: str
    options: dict[str, object] = Field(default_factory=dict)
    converted_at: str | None = None
