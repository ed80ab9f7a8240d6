"""The interface of every kind of checkpoint to the rest of the converter.

A source knows the names, shapes and bytes of tensors, but not what they are for.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import SourceError

from rdrr_converter.architectures.base import HeadRule
from rdrr_converter.checkpoint.files import MAX_AUXILIARY_BYTES, find_file, read_content

F32Array = npt.NDArray[np.float32]
Decode = Callable[[slice, slice], F32Array]
"""Function of rows and columns that decodes that part of a tensor."""

SCAN_ELEMENTS = 1 << 22
"""Weights in memory at a time during a scan of a tensor."""

TRANSPOSED_ROWS = 1 << 12
"""Rows to decode at a time when columns are wanted; with blocks of 256 weights that is 4 MiB."""

SCALARS = ("F32", "F16", "BF16")
"""Storage types that hold weights without encoding."""


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a checkpoint, seen as a matrix that can be read in parts.

    Attributes:
        name: Name in the checkpoint.
        shape: Logical shape.
        dtype: Storage type: F32, F16, BF16, or a block type of the format. Tensors that do not hold
            weights directly have other types, such as I32 or F8_E4M3. For tensors with `decode` it
            describes how they are stored.
        file: Path of the file that holds the tensor, for messages.
        native: Opens the stored values: [rows, columns], BF16 as uint16 and 8-bit floats as uint8;
            blocks as uint8 [rows, bytes of a row]. Opening is cheap, since the file is mapped. The
            function can be pickled, so that another process can open the same values.
        interleaved: Number of rows of an attention head if the rows of its two halves alternate, as
            llama.cpp stores them for rope; 0 if the rows are in order. Reading restores the order.
        offset: Added to every value that is read.
        decode: Decodes parts of a tensor that consists of several stored ones; `native` must not be
            used then. None for other tensors.
        note: How the tensor was changed on reading, for reports.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    native: Callable[[], npt.NDArray[Any]]
    interleaved: int = 0
    offset: float = 0.0
    decode: Decode | None = None
    note: str = ""

    @property
    def where(self) -> str:
        """The file and the tensor, for messages."""
        return f"{self.file}, tensor {self.name}"

    @property
    def rows(self) -> int:
        """Rows of the matrix: the product of all dimensions but the last (1 for a vector)."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of the matrix: the last dimension."""
        return self.shape[-1] if self.shape else 1

    def need_shape(
        self,
        expected: tuple[int, ...],
        problem: str = "wrong shape",
        hint: str | None = "config.json and the weights do not belong together",
    ) -> None:
        """Check that the tensor has a shape.

        Raises:
            SourceError: It has another one; `problem` and `hint` say what that means.
        """
        if self.shape != expected:
            stated = list(self.shape)
            raise SourceError(
                problem, where=self.where, expected=list(expected), found=stated, hint=hint
            )

    @property
    def is_block(self) -> bool:
        """Whether the tensor is stored in a block type of the format."""
        return self.decode is None and self.dtype in DTYPES and DTYPES[self.dtype].is_block

    @property
    def is_quantized(self) -> bool:
        """Whether reading the tensor dequantizes it."""
        return self.is_block or (self.decode is not None and self.dtype not in SCALARS)

    @property
    def is_plain_bf16(self) -> bool:
        """Whether the stored values are the weights, in BF16."""
        return self.decode is None and self.dtype == "BF16" and not self.offset

    def stored(self, rows: slice = slice(None), columns: slice = slice(None)) -> npt.NDArray[Any]:
        """Return a part of `native()`, rows in order; for block types `columns` counts bytes."""
        part = self.native()[:, columns]
        # Rows by their numbers, because all rows of a lazy matrix would stay lazy.
        first, end, _ = rows.indices(self.rows)
        return self.in_order(part, rows) if self.interleaved else read_ahead(part[first:end])

    def in_order(self, part: npt.NDArray[Any], rows: slice = slice(None)) -> npt.NDArray[Any]:
        """Return some rows, or values of rows, in the order of the tensor."""
        if not self.interleaved:
            return part[rows]
        # Row r of half h of a head is stored at row 2r + h of the head.
        head, row = np.divmod(np.arange(*rows.indices(self.rows)), self.interleaved)
        half, row = np.divmod(row, self.interleaved // 2)
        ordered: npt.NDArray[Any] = part[head * self.interleaved + 2 * row + half]
        return ordered

    def read(self, rows: slice = slice(None), columns: slice = slice(None)) -> F32Array:
        """Return a part of the matrix as float32, which represents every weight type exactly.

        Raises:
            SourceError: The tensor does not hold weights.
        """
        if self.decode is not None:
            return self.decode(rows, columns)
        if not self.is_block:
            return self._to_f32(self.stored(rows, columns))
        dtype = DTYPES[self.dtype]
        begin, end, _ = columns.indices(self.columns)
        first, last = begin // dtype.block_elements, -(-end // dtype.block_elements)
        raw = self.stored(rows, slice(first * dtype.block_bytes, last * dtype.block_bytes))
        start = first * dtype.block_elements
        values = CODECS[self.dtype].dequantize(np.ascontiguousarray(raw), end - start)
        return self._with_offset(values[:, begin - start :])

    def read_transposed(self, columns: slice) -> F32Array:
        """Return some columns, transposed: float32 [columns, rows].

        Scalars are transposed in their stored type, which is smaller, before they become float32.
        """
        if self.is_block or self.decode is not None:
            return self._transpose_in_parts(columns)
        return self._to_f32(self.stored_transposed(columns))

    def stored_transposed(self, columns: slice) -> npt.NDArray[Any]:
        """Return some columns of stored scalars, transposed: [columns, rows]."""
        return np.ascontiguousarray(self.stored(columns=columns).T)

    def _transpose_in_parts(self, columns: slice) -> F32Array:
        """Transpose some rows at a time, because decoding returns more columns than are needed."""
        begin, end, _ = columns.indices(self.columns)
        transposed = np.empty((end - begin, self.rows), np.float32)
        for first in range(0, self.rows, TRANSPOSED_ROWS):
            rows = slice(first, min(first + TRANSPOSED_ROWS, self.rows))
            transposed[:, rows] = self.read(rows, columns).T
        return transposed

    def _to_f32(self, stored: npt.NDArray[Any]) -> F32Array:
        self.check_scalar()
        if self.dtype != "BF16":
            return self._with_offset(stored.astype(np.float32))
        bits = stored.astype(np.uint32)
        bits <<= np.uint32(16)
        return self._with_offset(bits.view(np.float32))

    def _with_offset(self, values: F32Array) -> F32Array:
        return values + np.float32(self.offset) if self.offset else values

    def check_scalar(self) -> None:
        """Check that the stored values are weights.

        Raises:
            SourceError: They are something else, such as integers.
        """
        if self.dtype not in SCALARS:
            raise SourceError(
                "weights of this dtype cannot be converted",
                where=self.where,
                expected=", ".join(SCALARS),
                found=self.dtype,
            )


def with_aliases(
    tensors: Mapping[str, SourceTensor], names: Mapping[str, object]
) -> Mapping[str, SourceTensor]:
    """Return tensors, and again under names that were left out because their values are the same.

    Args:
        tensors: Stored tensors by name.
        names: Metadata beside them, in which safetensors states a stored name for each such name.
    """
    return {
        **tensors,
        **{
            name: replace(tensors[stored], name=name)
            for name, stored in names.items()
            if isinstance(stored, str) and stored in tensors and name not in tensors
        },
    }


_WRAPPERS = re.compile(
    r"^(module\.)+|(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
"""What training adds to names: DataParallel at the beginning, torch.compile and others anywhere."""


def without_wrappers(tensors: Mapping[str, SourceTensor]) -> Mapping[str, SourceTensor]:
    """Return tensors under the names that they had before the model was wrapped for training.

    They stay as they are where two would get one name.
    """
    # Twice, since either kind of wrapper may be around the other.
    names = {name: _WRAPPERS.sub("", _WRAPPERS.sub("", name)) for name in tensors}
    plain = set(names.values())
    if len(plain) < len(names) or plain == names.keys():
        return tensors
    return {names[name]: replace(tensor, name=names[name]) for name, tensor in tensors.items()}


def same_values(a: SourceTensor, b: SourceTensor) -> bool:
    """Return whether two tensors have the same values bit for bit, comparing part by part."""
    if a.shape != b.shape or a.dtype != b.dtype or a.offset != b.offset:
        return False
    step = max(1, SCAN_ELEMENTS // max(1, a.columns))
    if a.decode is not None or b.decode is not None:
        parts = (slice(first, first + step) for first in range(0, a.rows, step))
        return all(np.array_equal(a.read(part), b.read(part)) for part in parts)
    unsigned = np.dtype(f"u{a.native().dtype.itemsize}")
    return all(
        np.array_equal(
            a.stored(slice(first, first + step)).view(unsigned),
            b.stored(slice(first, first + step)).view(unsigned),
        )
        for first in range(0, a.rows, step)
    )


@dataclass(frozen=True)
class Source:
    """An opened checkpoint.

    Attributes:
        path: What was opened: a directory, or the file that holds everything.
        kind: Name of the kind of checkpoint, such as `safetensors`.
        config: Content of `config.json`, or what it would be in a Hugging Face directory.
        tensors: Tensors by name, in the order of the files.
        generation_config: Content of `generation_config.json`, or what it would be; may be empty.
        generated: Contents of files that a Hugging Face directory would have, made from the
            metadata of the checkpoint or in place of its files; None hides a file.
        notes: Notes for the user.
        modules: Tensors of the modules after an embedding model, by folder and name, where they are
            in the file of the model.
        follow_links: Whether files beside the weights may be links that lead out of the folder.
        head: What the file has in place of an output head, where the class does not say it.
    """

    path: Path
    kind: str
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    generated: Mapping[str, bytes | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    modules: Mapping[str, Mapping[str, SourceTensor]] = field(default_factory=dict)
    follow_links: bool = False
    head: HeadRule | None = None

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The configuration of the text model, which a multimodal model nests in its own."""
        nested = self.config.get("text_config")
        return {**self.config, **nested} if isinstance(nested, dict) else self.config

    @property
    def config_path(self) -> Path:
        """Path of the configuration, for messages."""
        return self.path if self.path.is_file() else self.path / "config.json"

    def file(self, name: str) -> Path | None:
        """Return the path of a file beside the weights, or None if there is no such file.

        Raises:
            SourceError: It is no regular file.
            StoreError: It is a link that leads out of the folder.
        """
        return find_file(self.path, name, follow_links=self.follow_links)

    def content(self, name: str) -> bytes | None:
        """Return the content of a generated file, else of one beside the weights, or None.

        Raises:
            SourceError: The file cannot be read.
            StoreError: It is a link that leads out of the folder.
        """
        if name in self.generated:
            return self.generated[name]
        path = self.file(name)
        return None if path is None else read_content(path, MAX_AUXILIARY_BYTES)


def read_ahead(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array unchanged; if it is contiguous in a mapped file, start reading it ahead.

    Without this, a mapped file is read 128 KiB at a time, and the reader waits for a page fault
    each time.
    """
    mapped = getattr(part, "_mmap", None)
    advice = getattr(mmap, "MADV_WILLNEED", None)  # missing on some systems; it is only a hint
    if not isinstance(mapped, mmap.mmap) or advice is None or not part.flags.c_contiguous:
        return part
    begin = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    aligned = begin - begin % mmap.PAGESIZE
    if part.nbytes:
        mapped.madvise(advice, aligned, begin + part.nbytes - aligned)
    return part
