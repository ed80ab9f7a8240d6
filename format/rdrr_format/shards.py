"""Shards: one stream of bytes cut into files of equal size, and reading runs of it back.

Shards are filled exactly and only the last is short, so a tensor may lie in several. Each tensor
starts at a multiple of `ALIGNMENT` in the stream; the zeros before it count in the shard's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from rdrr_format.errors import ShardError, StoreError
from rdrr_format.integrity import Hasher, hash_bytes, new_hasher
from rdrr_format.stores import Store, check_name, store_errors

DEFAULT_SHARD_SIZE = 64 << 20
ALIGNMENT = 256

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ShardSpan:
    """A run of bytes in one shard."""

    shard_index: int
    offset: int
    size: int


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        index: Position, counted from 0.
        filename: `shard_00000.bin` and so on.
        size: Bytes.
        hash: Hex digest of the bytes.
        offset: Sum of the sizes of the shards before it.
    """

    index: int
    filename: str
    size: int
    hash: str
    offset: int


class ShardLike(Protocol):
    """What a reader needs of a shard's description; a manifest's entries fit."""

    @property
    def filename(self) -> str:
        """File name inside the store."""
        ...

    @property
    def size(self) -> int:
        """Declared bytes."""
        ...

    @property
    def hash(self) -> str:
        """Declared digest."""
        ...


class RunLike(Protocol):
    """A run of bytes as a manifest's span states it."""

    @property
    def shard_index(self) -> int:
        """Shard."""
        ...

    @property
    def offset(self) -> int:
        """First byte in it."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...


def shard_name(index: int) -> str:
    """File name of the shard at a position."""
    return f"shard_{index:05d}.bin"


def plan_spans(start: int, size: int, shard_size: int) -> tuple[ShardSpan, ...]:
    """Where `size` bytes lie that begin at byte `start` of the stream."""
    spans: list[ShardSpan] = []
    while size > 0:
        index, offset = divmod(start, shard_size)
        count = min(size, shard_size - offset)
        spans.append(ShardSpan(index, offset, count))
        start, size = start + count, size - count
    return tuple(spans)


def align_up(position: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment


class ShardWriter:
    """Writes the stream and cuts it into shards.

    Args:
        store: Where the files go.
        shard_size: Bytes of every shard but the last.
        algorithm: Of the hashes.
        done: Shards that are in the store already; writing goes on behind them.
        position: Bytes of the stream that they hold.
        finished: Called with every shard that is written.
    """

    def __init__(
        self,
        store: Store,
        shard_size: int = DEFAULT_SHARD_SIZE,
        algorithm: str = "sha256",
        *,
        done: Sequence[ShardInfo] = (),
        position: int = 0,
        finished: Callable[[ShardInfo], None] | None = None,
    ) -> None:
        self._store = store
        self._shard_size = shard_size
        self._algorithm = algorithm
        self._done: list[ShardInfo] = list(done)
        self._finished = finished
        self._file: BinaryIO | None = None
        self._hasher: Hasher = new_hasher(algorithm)
        self.position = position

    def align(self, alignment: int = ALIGNMENT) -> None:
        """Pad with zeros up to the next multiple of `alignment`."""
        self.write(bytes(align_up(self.position, alignment) - self.position))

    def write(self, data: Any) -> tuple[ShardSpan, ...]:
        """Append bytes.

        Args:
            data: Anything with a contiguous buffer: bytes, an array, a memory map.

        Returns:
            Where they lie.

        Raises:
            StoreError: The disk is full, or the store refuses.
        """
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        spans = plan_spans(self.position, view.nbytes, self._shard_size)
        start = 0
        for span in spans:
            self._append(span, view[start : start + span.size])
            start += span.size
        return spans

    def close(self) -> tuple[ShardInfo, ...]:
        """Finish the last shard and describe them all."""
        if self._file is not None:
            self._finish()
        return tuple(self._done)

    def abort(self) -> None:
        """Close the open file; what was written so far is the caller's to remove."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                return  # closing flushes; the error that led here is the one to report

    def _append(self, span: ShardSpan, data: memoryview) -> None:
        if self._file is None:
            self._file = self._store.open_write(shard_name(span.shard_index))
        with store_errors(f"{self._store.describe()}/{shard_name(span.shard_index)}"):
            self._file.write(data)
        self._hasher.update(data)
        self.position += span.size
        if self.position % self._shard_size == 0:
            self._finish()

    def _finish(self) -> None:
        assert self._file is not None
        index, offset = len(self._done), len(self._done) * self._shard_size
        name = shard_name(index)
        with store_errors(f"{self._store.describe()}/{name}"):
            self._file.close()
        self._file = None
        size = self.position - offset
        self._done.append(ShardInfo(index, name, size, self._hasher.hexdigest(), offset))
        self._hasher = new_hasher(self._algorithm)
        if self._finished is not None:
            self._finished(self._done[-1])


class ShardReader:
    """Reads runs of bytes from the shards of a package.

    Args:
        store: Where the files are.
        shards: Their descriptions, in order.
        algorithm: Of the hashes.
    """

    def __init__(
        self, store: Store, shards: Sequence[ShardLike], algorithm: str = "sha256"
    ) -> None:
        self._store = store
        self._shards = shards
        self._algorithm = algorithm

    def read(self, runs: Sequence[RunLike]) -> Bytes:
        """The bytes of some runs, joined; a single run of a local shard is not copied.

        Raises:
            ShardError: A shard is missing or shorter than the run needs.
        """
        parts = [self._read_run(run) for run in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])

    def read_range(self, runs: Sequence[RunLike], start: int, size: int) -> Bytes:
        """Bytes `start` to `start + size` of what `read` would give.

        Raises:
            ShardError: The runs hold fewer bytes, or a shard does.
        """
        parts: list[ShardSpan] = []
        at = 0
        for run in runs:
            low, high = max(start, at), min(start + size, at + run.size)
            if low < high:
                parts.append(ShardSpan(run.shard_index, run.offset + low - at, high - low))
            at += run.size
        found = sum(part.size for part in parts)
        if found != size:
            raise ShardError("range outside the tensor", expected=f"{size} bytes", found=found)
        blocks = [self._read_run(part) for part in parts]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.empty(0, np.uint8)])

    def verify(self, index: int) -> None:
        """Compare a shard's size and hash with what is declared.

        Raises:
            ShardError: It is missing, has another size, or another hash.
            FormatError: The algorithm cannot be computed here.
        """
        shard = self._shards[index]
        where = self._where(shard)
        self.check_size(index)
        found = hash_bytes(self._algorithm, self._store.read(shard.filename))
        if found != shard.hash.lower():
            raise ShardError(
                "wrong hash",
                where=where,
                expected=shard.hash,
                found=found,
                hint="the bytes were changed or damaged; get the shard again",
            )

    def check_size(self, index: int) -> None:
        """Compare a shard's size with what is declared.

        Raises:
            ShardError: It is missing or has another size.
        """
        shard = self._shards[index]
        if not self._store.exists(check_name(shard.filename)):
            raise ShardError("shard is missing", where=self._where(shard))
        size = self._store.size(shard.filename)
        if size != shard.size:
            raise ShardError(
                "shard is too short" if size < shard.size else "shard is too long",
                where=self._where(shard),
                expected=f"{shard.size} bytes",
                found=f"{size} bytes",
            )

    def _read_run(self, run: RunLike) -> Bytes:
        if not 0 <= run.shard_index < len(self._shards):
            raise ShardError(
                "no such shard", expected=f"below {len(self._shards)}", found=run.shard_index
            )
        shard = self._shards[run.shard_index]
        try:
            data = self._store.read(shard.filename, run.offset, run.size)
        except StoreError as error:
            raise ShardError(error.message, where=self._where(shard)) from error
        if len(data) != run.size:
            raise ShardError(
                "shard is too short",
                where=self._where(shard),
                expected=f"{run.offset + run.size} bytes",
                found=f"{run.offset + len(data)} bytes",
            )
        return data

    def _where(self, shard: ShardLike) -> str:
        return f"{self._store.describe()}/{shard.filename}"
