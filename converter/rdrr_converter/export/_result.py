"""The result of an export: the type and the error of every tensor."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rdrr_format.html_tables import rows_table

from rdrr_converter.checkpoint.outgoing import OutgoingTensor


@dataclass(frozen=True)
class ExportedTensor:
    """The result of the export of one tensor.

    Attributes:
        name: Name in the checkpoint.
        shape: Logical shape.
        stored: Type in the package.
        dtype: Type in the checkpoint.
        size: Size in the checkpoint in bytes.
        is_copied: Whether the stored bytes were copied.
        why: Reason if blocks could not be copied; otherwise empty.
        relative_rmse: Error of the exported values relative to those of the package.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    dtype: str
    size: int
    is_copied: bool
    why: str
    relative_rmse: float

    @staticmethod
    def of(tensor: OutgoingTensor, error: float) -> ExportedTensor:
        """Return the result of a planned tensor, given its relative error."""
        return ExportedTensor(
            name=tensor.name,
            shape=tensor.shape,
            stored=" and ".join(sorted({part.dtype.name for part in tensor.parts})),
            dtype=tensor.dtype,
            size=tensor.size,
            is_copied=tensor.is_as_stored,
            why=tensor.why,
            relative_rmse=error,
        )


@dataclass(frozen=True, repr=False)
class ExportResult:
    """The result of an export.

    Attributes:
        destination: The folder or file of the checkpoint.
        kind: `safetensors` or `gguf`.
        architecture: Name of the architecture of the checkpoint.
        tensors: The exported tensors, in the order of the checkpoint.
        notes: Notes for the user.
    """

    destination: Path
    kind: str
    architecture: str
    tensors: tuple[ExportedTensor, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{len(self.tensors)} tensors, {self.total_size:,} bytes"
        return f"<ExportResult {str(self.destination)!r} ({self.kind}): {size}>"

    def _repr_html_(self) -> str:
        """Return a table of the types for notebooks."""
        groups = Counter((tensor.stored, tensor.dtype) for tensor in self.tensors)
        rows = [(*types, count) for types, count in groups.items()]
        return rows_table(repr(self), ("stored as", "written as", "tensors"), rows)

    @property
    def is_lossless(self) -> bool:
        """Whether all values in the checkpoint are exactly those of the package."""
        return all(tensor.relative_rmse == 0.0 for tensor in self.tensors)

    @property
    def total_size(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.size for tensor in self.tensors)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            **asdict(self),
            "destination": str(self.destination),
            "lossless": self.is_lossless,
            "total_size": self.total_size,
        }
