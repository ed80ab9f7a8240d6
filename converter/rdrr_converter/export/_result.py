"""What an export says: what became of every tensor, and what was lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ExportedTensor:
    """What became of one tensor.

    Attributes:
        name: Name in the checkpoint.
        shape: Logical shape.
        stored: Type in the package.
        dtype: Type in the checkpoint.
        size: Bytes in the checkpoint.
        is_copied: Whether the stored bytes were written.
        why: Reason where blocks could not be written as they are.
        relative_rmse: Error by the new type, relative to what the package holds.
    """

    name: str
    shape: tuple[int, ...]
    stored: str
    dtype: str
    size: int
    is_copied: bool
    why: str
    relative_rmse: float


@dataclass(frozen=True)
class ExportResult:
    """What an export did.

    Attributes:
        destination: The folder or file.
        kind: `safetensors` or `gguf`.
        architecture: Name of the architecture that the checkpoint states.
        tensors: In the order of the checkpoint.
        notes: What the user should know.
    """

    destination: Path
    kind: str
    architecture: str
    tensors: tuple[ExportedTensor, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_lossless(self) -> bool:
        """Whether every value of the package is in the checkpoint as it was."""
        return all(tensor.relative_rmse == 0.0 for tensor in self.tensors)

    @property
    def total_size(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            **asdict(self),
            "destination": str(self.destination),
            "lossless": self.is_lossless,
            "total_size": self.total_size,
        }
