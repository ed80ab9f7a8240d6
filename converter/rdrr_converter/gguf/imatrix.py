"""Read importance matrices: the GGUF files that llama.cpp writes now, and its older `.dat` files.

For each matmul weight they hold the sum of squared activations of every input, and the number of
activations in the sum. In a GGUF (`general.type` is `imatrix`) these are the tensors
`NAME.in_sum2` [experts, inputs] and `NAME.counts` [experts]. `rdrr imatrix --sensitivity` adds
`NAME.out_sum2` [experts, outputs]. The older file has no magic:

    i32 entries, then for each   i32 length, name   i32 calls   i32 values, f32 values
    i32 chunks, i32 length, name of the calibration text (both may be missing)

This module only reads files; `rdrr_converter.importance` matches their names with tensors.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import SourceError
from rdrr_format.regular_files import open_regular

from rdrr_converter.checkpoint.files import read_content
from rdrr_converter.checkpoint.source import F32Array
from rdrr_converter.gguf.file import MAGIC, GgufTensor, read_gguf

SUMS, COUNTS, ROWS = ".in_sum2", ".counts", ".out_sum2"
TYPE_KEY, TYPE = "general.type", "imatrix"

MAX_BYTES = 4 << 30
"""Largest size in bytes of a file; that of a model with 15,000 experts has 1 GiB."""

MAX_ENTRIES = 1 << 17

_MAX_NAME = 256


def read_imatrix(path: Path) -> Mapping[str, F32Array]:
    """Return the mean squared activations by name, float32, with experts one after another.

    For an expert that no token was routed to, every input has the value 1, as in llama.cpp. The
    importance of rows stands under the name and `ROWS`.

    Raises:
        SourceError: The file is not an importance matrix, is damaged, or holds values that cannot
            be means of squares.
    """
    try:
        with open_regular(path) as file:
            is_gguf = file.read(4) == MAGIC
            size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise SourceError(
                "the file is too large for an importance matrix",
                where=path,
                expected=f"at most {MAX_BYTES} bytes",
                found=f"{size} bytes",
            )
        entries = _read_gguf(path) if is_gguf else _read_legacy(path)
    except OSError as error:
        raise SourceError("cannot be read", where=path, found=error.strerror) from error
    for name, values in entries.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise SourceError(
                "an importance value is not a mean of squares",
                where=f"{path}, {name}",
                expected="finite numbers of zero or more",
                found=values[~(np.isfinite(values) & (values >= 0))][0],
            )
    if not entries:
        raise SourceError("the importance matrix has no entries", where=path)
    return entries


def _read_gguf(path: Path) -> dict[str, F32Array]:
    file = read_gguf(path)
    if file.metadata.get(TYPE_KEY) != TYPE:
        raise SourceError(
            "the GGUF file is not an importance matrix",
            where=f"{path}, {TYPE_KEY}",
            expected=TYPE,
            found=file.metadata.get(TYPE_KEY, "nothing"),
        )
    means: dict[str, F32Array] = {}
    for name in file.tensors:
        if name.endswith(SUMS):
            entry = name.removesuffix(SUMS)
            means[entry] = _mean(path, entry, SUMS, file.tensors)
        elif name.endswith(ROWS):
            means[name] = _mean(path, name.removesuffix(ROWS), ROWS, file.tensors)
    return means


def _mean(path: Path, name: str, suffix: str, tensors: Mapping[str, GgufTensor]) -> F32Array:
    if name + COUNTS not in tensors:
        raise SourceError(
            "the counts of an importance entry are missing",
            where=path,
            expected=name + COUNTS,
            found="nothing",
        )
    sums, counts = _values(tensors[name + suffix]), _values(tensors[name + COUNTS])
    if not counts.size or sums.size % counts.size:
        raise SourceError(
            "the sums and counts of an importance entry do not match",
            where=f"{path}, {name}",
            expected=f"a multiple of {counts.size} sums",
            found=sums.size,
        )
    by_expert = sums.reshape(counts.size, -1)
    reached = counts[:, None] > 0
    # Divide in float32 like ggml: the last bits of the weights influence the blocks.
    with np.errstate(all="ignore"):  # `read_imatrix` refuses values that are not finite
        means = np.where(reached, by_expert / np.where(reached, counts[:, None], 1), np.float32(1))
    flat: F32Array = means.astype(np.float32).reshape(-1)
    return flat


def _values(tensor: GgufTensor) -> F32Array:
    if tensor.dtype != "F32":
        raise SourceError(
            "an importance entry has the wrong type",
            where=f"{tensor.path}, tensor {tensor.name}",
            expected="F32",
            found=tensor.dtype,
        )
    return np.fromfile(tensor.path, "<f4", tensor.size // 4, offset=tensor.offset)


def _read_legacy(path: Path) -> dict[str, F32Array]:
    data = read_content(path, MAX_BYTES)
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if size < 0 or at + size > len(data):
            raise SourceError(
                "neither a GGUF file nor a complete importance matrix",
                where=path,
                expected=f"{size} bytes at {at}" if size >= 0 else "sizes of zero or more",
                found=f"{len(data)} bytes in all",
            )
        at += size
        return data[at - size : at]

    def number() -> int:
        value: int = struct.unpack("<i", take(4))[0]
        return value

    entries: dict[str, F32Array] = {}
    count = number()
    if count > MAX_ENTRIES:
        raise SourceError(
            "the importance matrix has too many entries",
            where=path,
            expected=f"at most {MAX_ENTRIES}",
            found=count,
        )
    for _ in range(count):
        length = number()
        name = take(length if length <= _MAX_NAME else -1).decode("utf-8", errors="replace")
        if name in entries:
            raise SourceError("an importance entry occurs twice", where=path, found=name)
        calls = number()
        values: npt.NDArray[np.float32] = np.frombuffer(take(4 * number()), "<f4")
        with np.errstate(all="ignore"):  # `read_imatrix` refuses values that are not finite
            entries[name] = values / np.float32(calls) if calls > 0 else values
    return entries
