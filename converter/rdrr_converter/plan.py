"""The plan of a conversion: type, layout, size and bytes of every output tensor, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES, DType
from rdrr_format.errors import ConversionError
from rdrr_format.layouts import Geometry, Layout, geometry
from rdrr_format.shards import ShardSpan

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.importance import Importance, ImportanceMatrix

MATMULS = ("matmul", "lm_head", "expert")
"""Roles of weights that multiply activations and that may therefore be transposed."""


@dataclass(frozen=True)
class ChosenType:
    """A type that was chosen for a single tensor.

    Attributes:
        dtype: The type.
        why: The reason.
    """

    dtype: DType
    why: str


@dataclass(frozen=True)
class EncodedTensors:
    """Stored bytes that methods of the option `quality` chose before the conversion.

    Attributes:
        folder: Folder with a file for each such tensor, of the same name.
        notes: Notes for the user on what the methods did.
    """

    folder: Path
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the package.

    Attributes:
        name: Name in the package.
        sources: The source tensors of its values; two of them are concatenated along N.
        role: Role in the manifest.
        group: Group in the manifest.
        shape: Logical shape.
        dtype: Storage type.
        layout: Layout in storage.
        why: Reason for the type.
        spans: Byte spans in the shards.
        overflowed: Whether it is kept in F32 because a value does not fit the requested type.
        quality: Search for block parameters, one of `QUALITIES`.
        importance: Importance of the rows and columns of each source; empty if unknown.
        encoded: File of its stored bytes, where they are known already.
        divergence: Estimate of the divergence that its type causes, in nats a token; None unless
            the types were chosen by measured error.
    """

    name: str
    sources: tuple[SourceTensor, ...]
    role: str
    group: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout
    why: str
    spans: tuple[ShardSpan, ...] = ()
    overflowed: bool = False
    quality: str = "ref"
    importance: tuple[Importance, ...] = field(default=(), compare=False, repr=False)
    encoded: Path | None = field(default=None, compare=False, repr=False)
    divergence: float | None = field(default=None, compare=False, repr=False)

    @property
    def geometry(self) -> Geometry:
        """Number of stored rows and their size."""
        return geometry(self.dtype, self.shape, self.layout)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.geometry.size

    @property
    def weights(self) -> int:
        """Number of weights without padding."""
        return prod(self.shape)

    @property
    def is_copied(self) -> bool:
        """Whether the blocks of the source are copied bit for bit."""
        return (
            self.dtype.is_block
            and self.layout is Layout.ROW
            and all(part.is_block and part.dtype == self.dtype.name for part in self.sources)
        )

    @property
    def dequantized_from(self) -> tuple[str, ...]:
        """Block types of the source that are dequantized; empty if blocks are copied."""
        if self.is_copied:
            return ()
        return tuple(sorted({part.dtype for part in self.sources if part.is_quantized}))

    @property
    def is_searched(self) -> bool:
        """Whether its encoding weighs the columns by their importance, if that is known."""
        codec = CODECS[self.dtype.name]
        takes = codec.takes_importance or (codec.refiner is not None and self.quality == "best")
        return takes and not self.is_copied

    @property
    def is_matmul(self) -> bool:
        """Whether it multiplies activations, and may therefore be transposed."""
        return self.role in MATMULS


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion will write.

    Attributes:
        tensors: Output tensors in storage order, with their byte spans.
        shard_sizes: Size of each shard in bytes.
    """

    tensors: tuple[PlannedTensor, ...]
    shard_sizes: tuple[int, ...]

    @property
    def total_size(self) -> int:
        """Size of all shards in bytes."""
        return sum(self.shard_sizes)

    @property
    def weights_transposed(self) -> bool:
        """Whether every matmul weight is in the column layout."""
        return all(t.layout is Layout.COLUMN for t in self.tensors if t.is_matmul)

    def with_encoded(self, encoded: EncodedTensors) -> ConversionPlan:
        """Return the plan with tensors whose stored bytes are known.

        Raises:
            ConversionError: A file has another size than its tensor.
        """
        tensors = tuple(_with_encoded(tensor, encoded.folder) for tensor in self.tensors)
        return replace(self, tensors=tensors)

    def source_notes(self) -> tuple[str, ...]:
        """Return notes on how a source that is already quantized is stored."""
        copied = sum(tensor.is_copied for tensor in self.tensors)
        decoded = Counter(
            (" and ".join(tensor.dequantized_from), tensor.dtype.name)
            for tensor in self.tensors
            if tensor.dequantized_from
        )
        notes = [f"{_count(copied)}: blocks copied from the source bit for bit"] if copied else []
        for (before, after), count in sorted(decoded.items()):
            again = "dequantized and quantized again as" if DTYPES[after].is_block else "stored as"
            notes.append(f"{_count(count)}: {before} in the source, {again} {after}")
        return tuple(notes)

    def importance_notes(self, matrix: ImportanceMatrix) -> tuple[str, ...]:
        """Return notes on how many tensors used a matrix and which had no entry in it."""
        searched = [tensor for tensor in self.tensors if tensor.is_searched]
        missing = [tensor.name for tensor in searched if not tensor.importance]
        count = len(searched) - len(missing)
        notes = [f"{count} of {len(searched)} tensors were quantized with the importance matrix"]
        if missing:
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            notes.append(f"{matrix.path.name} has no entry for {some}")
        return tuple(notes)

    def describe(self) -> Iterator[dict[str, object]]:
        """Yield one row per tensor, for `--dry-run`."""
        for tensor in self.tensors:
            yield {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                "layout": tensor.layout.value,
                "size": tensor.size,
                "shard": tensor.spans[0].shard_index if tensor.spans else 0,
                "offset": tensor.spans[0].offset if tensor.spans else 0,
                "why": tensor.why,
            }


def _with_encoded(tensor: PlannedTensor, folder: Path) -> PlannedTensor:
    path = folder / tensor.name
    if not path.exists():
        return tensor
    if path.stat().st_size != tensor.size:
        raise ConversionError(
            "the encoded blocks have another size than planned",
            where=tensor.name,
            expected=f"{tensor.size} bytes",
            found=path.stat().st_size,
        )
    return replace(tensor, encoded=path)


def _count(tensors: int) -> str:
    return f"{tensors} tensor" + ("s" if tensors != 1 else "")
