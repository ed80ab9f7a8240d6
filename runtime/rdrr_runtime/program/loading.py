"""The load steps of a program, run with the tensors of its package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import Arena
from rdrr_device.buffers import OFFSET_ALIGNMENT, BufferSlice, align
from rdrr_device.kernels import Dispatch, Kernel, Work
from rdrr_format.codecs import CODECS
from rdrr_format.codecs.f16 import f16_overflow_count
from rdrr_format.errors import FormatError
from rdrr_manifests.package import Package

from rdrr_runtime.program.steps import (
    Chunk,
    Constant,
    Decoded,
    LoadStep,
    Repack,
    Rope,
    Rows,
    Vector,
    VectorPart,
)

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

POSITIONS = 1 << 14
"""Positions of a rope table that are computed at a time."""


class Loader:
    """Fills the buffers of a program.

    Args:
        package: The package with the tensors.
        arena: Owner of the buffers; it also has those for the chunks that are repacked.
        ranges: The ranges of the program.
        kernels: The kernels of the program.
        context: The context of the program.
    """

    def __init__(
        self,
        package: Package,
        arena: Arena,
        ranges: Sequence[BufferSlice],
        kernels: Sequence[Kernel],
        context: int,
    ) -> None:
        self._package, self._arena = package, arena
        self._ranges, self._kernels, self._context = ranges, kernels, context

    def run(self, steps: Sequence[LoadStep]) -> None:
        """Run load steps, in order.

        Raises:
            FormatError: A tensor is not the one that the program was made for.
            ManifestError: There is no such tensor.
            ShardError: Bytes of a tensor are missing.
        """
        with self._arena.temporary() as temporary:
            staging = _Staging.create(temporary, steps)
            for step in steps:
                match step:
                    case Constant():
                        words = np.array(step.words, np.uint32)
                        self._arena.write(self._ranges[step.range], words)
                    case Rope():
                        self._rope(step)
                    case Vector():
                        parts = [self._vector(part).reshape(-1) for part in step.parts]
                        self._arena.write(self._ranges[step.range], np.concatenate(parts))
                    case Rows():
                        self._rows(step)
                    case Repack():
                        self._repack(step, staging)

    def _rope(self, step: Rope) -> None:
        radians = np.array(step.frequencies, np.float64)
        for first in range(0, self._context, POSITIONS):
            positions = np.arange(first, min(first + POSITIONS, self._context), dtype=np.float64)
            angles = positions[:, None] * radians
            table = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * step.factor
            offset = 8 * first * len(radians)
            self._arena.write(self._ranges[step.range], table.astype(np.float32), offset)

    def _vector(self, part: VectorPart) -> F32:
        self._check(part.tensor, part.dtype)
        values, scale = self._package.dequantize(part.tensor), part.scale
        if scale is not None:
            wide = (values.astype(np.float64) + scale.offset) * scale.factor - scale.offset
            values = wide.astype(np.float32)
        return _padded(values, part.shape, part.tensor)

    def _rows(self, step: Rows) -> None:
        if step.decoded is None:
            rows = self._stored(step.tensor, step.dtype, step.rows, step.row_bytes)
        else:
            self._check(step.tensor, step.dtype)
            rows = self._decoded(step, step.decoded)
        for part in step.parts:
            first = max(step.first, part.first)
            last = min(step.first + step.rows, part.first + part.rows)
            if first < last:
                some = np.zeros((last - first, step.stride), np.uint8)
                some[:, : step.row_bytes] = rows[first - step.first : last - step.first]
                offset = (first - part.first) * step.stride
                self._arena.write(self._ranges[part.range], some, offset)

    def _decoded(self, step: Rows, decoded: Decoded) -> Bytes:
        values = self._package.dequantize(step.tensor)
        padded = _padded(values, (step.rows, decoded.columns), step.tensor)
        if decoded.dtype == "F16" and f16_overflow_count(padded):
            raise FormatError("the tensor has values that are too large for F16", where=step.tensor)
        encoded: Bytes = CODECS[decoded.dtype].quantize(padded)
        return encoded.reshape(step.rows, step.row_bytes)

    def _repack(self, step: Repack, staging: _Staging) -> None:
        """Repack a tensor a chunk at a time; the queue keeps writes and dispatches in order."""
        rows = self._stored(step.tensor, step.dtype, step.rows, step.row_bytes)
        for chunk in step.chunks:
            data = np.zeros(align(chunk.rows * step.row_bytes, 4), np.uint8)
            data[: chunk.rows * step.row_bytes] = rows[chunk.first :][: chunk.rows].reshape(-1)
            blocks = staging.blocks.range(0, data.size)
            self._arena.write(blocks, data)
            self._arena.run(*self._dispatches(chunk, blocks, staging.targets))

    def _dispatches(
        self, chunk: Chunk, blocks: BufferSlice, targets: BufferSlice
    ) -> Iterator[Dispatch]:
        for index, write in enumerate(chunk.writes):
            target = targets.range(OFFSET_ALIGNMENT * index, 4 * len(write.target))
            self._arena.write(target, np.array(write.target, np.uint32))
            bound = {"blocks": blocks, "planes": self._ranges[write.planes], "chunk": target}
            kernel = self._kernels[write.kernel]
            slices = tuple(bound[binding.name] for binding in kernel.bindings)
            yield Dispatch(kernel, slices, Work(write.items), "repack")

    def _stored(self, tensor: str, dtype: str, rows: int, row_bytes: int) -> Bytes:
        """Return the stored rows of a tensor, a memory map where possible."""
        self._check(tensor, dtype, rows * row_bytes)
        return self._package.read(tensor).reshape(rows, row_bytes)

    def _check(self, name: str, dtype: str, size: int | None = None) -> None:
        tensor = self._package.tensor(name)
        if tensor.dtype != dtype or size not in (None, tensor.size):
            raise FormatError(
                "the tensor is not the one that the program was made for",
                where=name,
                expected=f"{dtype}, {size or tensor.size} bytes",
                found=f"{tensor.dtype}, {tensor.size} bytes",
                hint="export the program again from this package",
            )


@dataclass(frozen=True)
class _Staging:
    """The buffers from which chunks are repacked, which all steps share.

    Attributes:
        blocks: The stored rows.
        targets: The words of each dispatch of a chunk.
    """

    blocks: BufferSlice
    targets: BufferSlice

    @staticmethod
    def create(arena: Arena, steps: Sequence[LoadStep]) -> _Staging:
        """Return buffers that are large enough for every chunk."""
        pairs = [
            (chunk.rows * step.row_bytes, len(chunk.writes))
            for step in steps
            if isinstance(step, Repack)
            for chunk in step.chunks
        ]
        size = max((size for size, _ in pairs), default=0)
        writes = max((writes for _, writes in pairs), default=0)
        return _Staging(
            arena.empty("blocks", size), arena.empty("chunk", OFFSET_ALIGNMENT * writes)
        )


def _padded(values: F32, shape: Sequence[int], name: str) -> F32:
    """Return values with zeros up to a shape."""
    if len(values.shape) != len(shape) or any(
        size > most for size, most in zip(values.shape, shape, strict=True)
    ):
        raise FormatError(
            "the tensor is larger than the program says",
            where=name,
            expected=list(shape),
            found=list(values.shape),
        )
    padded = np.zeros(shape, np.float32)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
