"""The weights of a package as a mapping of tensor names to arrays.

It reads the package alone: neither the runtime, torch nor wgpu is imported. Names and shapes are
those of the manifest; a matmul weight is [outputs, inputs] in whatever order it is stored.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
from rdrr_format.closing import Closing
from rdrr_format.errors import UsageError
from rdrr_format.html_tables import rows_table
from rdrr_format.misuse import explained
from rdrr_format.options import shown
from rdrr_format.printing import printable

if TYPE_CHECKING:
    from rdrr_manifests.models import Manifest, Tensor
    from rdrr_manifests.package import Package

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_LISTED = 50
"""Tensors that the table for notebooks lists at most."""


class TensorSlice:
    """One tensor of which only the rows that are asked for are read.

    A row is an index of the first dimension. Only a tensor in layout row is read without its other
    rows; of the other layouts whole blocks around the rows are decoded.

    Attributes:
        name: Name of the tensor.
        shape: Its logical shape.
        dtype: Its storage type, as `Q4_K`.
    """

    def __init__(self, package: Package, name: str) -> None:
        from rdrr_manifests.logical import LogicalTensor, RowReader

        entry = package.tensor(name)
        self.name = name
        self.shape: tuple[int, ...] = tuple(entry.shape)
        self.dtype = entry.dtype
        self._reader = RowReader(package, LogicalTensor(name, self.shape, entry.role, name, entry))

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: int | slice) -> F32Array:
        """Return rows as float32: [a:b] keeps the first dimension, [i] drops it.

        Raises:
            UsageError: The index is neither a whole number nor a slice.
            IndexError: The tensor has no such row.
            FormatError: The bytes do not follow the format.
            ShardError: A shard is missing or too short.
        """
        if isinstance(rows, slice):
            return self._rows(range(*rows.indices(len(self))))
        try:
            index = operator.index(rows)
        except TypeError:
            raise UsageError(
                "a tensor is read by rows", expected="[a:b] or [i]", found=shown(rows)
            ) from None
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {self.name}, which has {len(self)} rows")
        return np.asarray(self._rows(range(index % len(self), index % len(self) + 1))[0])

    def _rows(self, wanted: range) -> F32Array:
        inner = self.shape[1:]
        if not wanted:
            return np.zeros((0, *inner), np.float32)
        first, last = min(wanted), max(wanted)
        rows = self._read(first, last - first + 1).reshape(-1, *inner)
        return rows[[index - first for index in wanted]] if wanted.step != 1 else rows

    def _read(self, first: int, count: int) -> F32Array:
        """Decode `count` indices of the first dimension, as float32 in the order of the shape."""
        if len(self.shape) == 1:  # a vector is one row of the matrix view
            return self._reader.values(0, 1)[0, first : first + count]
        matrix_rows = int(np.prod(self.shape[1:-1], dtype=np.int64))
        return self._reader.values(first * matrix_rows, count * matrix_rows)

    def __repr__(self) -> str:
        return printable(
            f"TensorSlice({self.name!r}, shape={list(self.shape)}, dtype={self.dtype})"
        )


@explained
class Weights(Closing, Mapping[str, F32Array]):
    """The tensors of a package by name; made by `rdrr.open`.

    `weights[name]` is the whole tensor, dequantized to float32. Nothing is kept: each access reads
    the tensor again.

    Attributes:
        package: The opened package, which has the graph and the tokenizer too.
    """

    def __init__(self, package: Package) -> None:
        self.package = package

    @property
    def manifest(self) -> Manifest:
        """The manifest, as the current generation of the format has it."""
        return self.package.manifest

    @property
    def metadata(self) -> dict[str, Any]:
        """What the manifest says besides its lists of tensors and shards, as JSON values."""
        return self.manifest.model_dump(
            mode="json", by_alias=True, exclude={"tensors", "shards"}, exclude_none=True
        )

    def tensor(self, name: str) -> Tensor:
        """Return a tensor's entry in the manifest: shape, storage type, layout and role.

        Raises:
            KeyError: There is no tensor of this name.
        """
        return self.manifest.tensors[name]

    @overload
    def get_tensor(self, name: str, *, raw: Literal[False] = False) -> F32Array: ...
    @overload
    def get_tensor(self, name: str, *, raw: Literal[True]) -> Bytes: ...
    @overload
    def get_tensor(self, name: str, *, raw: bool) -> F32Array | Bytes: ...
    def get_tensor(self, name: str, *, raw: bool = False) -> F32Array | Bytes:
        """Return a tensor.

        Args:
            name: One of `keys()`.
            raw: Return the stored bytes, uint8 in one dimension, instead of float32 values in the
                tensor's shape.

        Raises:
            KeyError: There is no tensor of this name.
            FormatError: The bytes do not follow the format.
            ShardError: A shard is missing or too short.
        """
        self.tensor(name)
        return self.package.read(name) if raw else self.package.dequantize(name)

    def get_slice(self, name: str) -> TensorSlice:
        """Return an object that reads some rows: `weights.get_slice(name)[10:20]`.

        Raises:
            KeyError: There is no tensor of this name.
        """
        self.tensor(name)
        return TensorSlice(self.package, name)

    def __getitem__(self, name: str) -> F32Array:
        return self.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.tensors  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.tensors)

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    def __eq__(self, other: object) -> bool:
        return self is other  # arrays have no equality of their own

    def __hash__(self) -> int:
        return id(self)

    def close(self) -> None:
        """Let go of the package; arrays that were handed out stay valid."""
        self.package.close()

    def __repr__(self) -> str:
        return f"Weights({self.package.where!r}, tensors={len(self)})"

    def _repr_html_(self) -> str:
        """Return a table of the tensors for notebooks."""
        tensors = list(self.manifest.tensors.items())
        rows: list[tuple[object, ...]] = [
            (name, list(tensor.shape), tensor.dtype, tensor.role, f"{tensor.size:,}")
            for name, tensor in tensors[:_LISTED]
        ]
        if len(tensors) > _LISTED:
            rows.append((f"and {len(tensors) - _LISTED} more", None, None, None, None))
        columns = ("tensor", "shape", "type", "role", "bytes")
        return rows_table(f"Weights of {self.package.where}", columns, rows)


@explained
def open_weights(location: str | os.PathLike[str], *, follow_links: bool = False) -> Weights:
    """Open a package as a mapping of tensor names to float32 arrays; `rdrr.open` is its name.

        with rdrr.open("package") as weights:
            norm = weights["model.norm.weight"]
            rows = weights.get_slice("model.embed_tokens.weight")[10:20]
            stored = weights.get_tensor("model.norm.weight", raw=True)

    Opening checks the structure and the sizes of the files, but hashes nothing; `rdrr.validate`
    with `deep` does.

    Args:
        location: Folder or URL of the package.
        follow_links: Follow links that lead out of the package's folder.

    Raises:
        StoreError: The path or URL cannot be read.
        ManifestError: What is there is not a package, or its manifest has faults.
    """
    from rdrr_manifests.package import open_package

    return Weights(open_package(location, follow_links=follow_links))
