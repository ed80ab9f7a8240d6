"""Shards: one stream of bytes cut into files of equal size, and reading runs of it back.

Shards are filled exactly and only the last is short, so a tensor may lie in several. Each tensor
starts at a multiple of `ALIGNMENT` in the stream; the zeros before it count in the shard's size.
A shard may be compressed as a whole file (`rdrr_format.compression`): places are then those of its
content, and size and hash those of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from rdrr_format.compression import ZSTD, Compression, FrameWriter
from rdrr_format.decompression import FrameCache, FrameReader
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
        size: Bytes on disk.
        hash: Hex digest of the bytes on disk.
        offset: Sum of the sizes of the shards before it.
        compression: `zstd`, or None.
        uncompressed_size: Bytes of the content of a compressed shard; else None.
    """

    index: int
    filename: str
    size: int
    hash: str
    offset: int
    compression: str | None = None
    uncompressed_size: int | None = None


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

    @property
    def compression(self) -> str | None:
        """`zstd`, or None."""
        ...

    @property
    def uncompressed_size(self) -> int | None:
        """Declared bytes of the content of a compressed shard."""
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


_SHARD_NAME = re.compile(r"shard_\d+\.bin(\.zst)?")


def is_shard_name(name: str) -> bool:
    """Whether a file's name is one that a writer gives to shards, compressed or not."""
    return _SHARD_NAME.fullmatch(name) is not None


def shard_name(index: int, compression: Compression | None = None) -> str:
    """File name of the shard at a position."""
    return f"shard_{index:05d}.bin" + (".zst" if compression else "")


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
        shard_size: Bytes of the content of every shard but the last.
        algorithm: Of the hashes.
        compression: Of every shard; None writes the content as it is.
        workers: Threads that compress; the bytes do not depend on it.
        done: Shards that are in the store already; writing goes on behind them.
        position: Bytes of the stream that they hold.
        finished: Called with every shard that is written.
    """

    def __init__(
        self,
        store: Store,
        shard_size: int = DEFAULT_SHARD_SIZE,
        algorithm: str = "sha256",
        compression: Compression | None = None,
        workers: int = 1,
        *,
        done: Sequence[ShardInfo] = (),
        position: int = 0,
        finished: Callable[[ShardInfo], None] | None = None,
    ) -> None:
        self._store = store
        self._shard_size = shard_size
        self._algorithm = algorithm
        self._compression = compression
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers) if compression and workers > 1 else None
        self._done: list[ShardInfo] = list(done)
        self._finished = finished
        self._file: _ShardFile | None = None
        self._frames: FrameWriter | None = None
        new_hasher(algorithm)  # an unknown one is an error before anything is written
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
        self._stop_pool()
        return tuple(self._done)

    def abort(self) -> None:
        """Close the open file; what was written so far is the caller's to remove."""
        self._stop_pool()
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.file.close()
            except OSError:
                return  # closing flushes; the error that led here is the one to report

    def _append(self, span: ShardSpan, data: memoryview) -> None:
        if self._file is None:
            self._begin(span.shard_index)
        assert self._file is not None
        if self._frames is not None:
            self._frames.write(data)
        else:
            self._file.write(data)
        self.position += span.size
        if self.position % self._shard_size == 0:
            self._finish()

    def _begin(self, index: int) -> None:
        name = shard_name(index, self._compression)
        where = f"{self._store.describe()}/{name}"
        self._file = _ShardFile(name, where, self._store.open_write(name), self._algorithm)
        if self._compression is not None:
            self._frames = FrameWriter(
                self._file.write, self._compression, self._pool, 2 * self._workers
            )

    def _finish(self) -> None:
        assert self._file is not None
        if self._frames is not None:
            self._frames.close()
        file = self._file
        file.close()
        self._file = self._frames = None
        index = len(self._done)
        packed = self._compression is not None
        self._done.append(
            ShardInfo(
                index=index,
                filename=file.name,
                size=file.size,
                hash=file.hasher.hexdigest(),
                offset=sum(shard.size for shard in self._done),
                compression=ZSTD if packed else None,
                uncompressed_size=self.position - index * self._shard_size if packed else None,
            )
        )
        if self._finished is not None:
            self._finished(self._done[-1])

    def _stop_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class _ShardFile:
    """A file that is being written, with its size and hash so far."""

    def __init__(self, name: str, where: str, file: BinaryIO, algorithm: str) -> None:
        self.name = name
        self.file = file
        self.hasher: Hasher = new_hasher(algorithm)
        self.size = 0
        self._where = where

    def write(self, data: bytes | memoryview) -> None:
        with store_errors(self._where):
            self.file.write(data)
        self.hasher.update(data)
        self.size += len(data)

    def close(self) -> None:
        with store_errors(self._where):
            self.file.close()


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
        self._frames: dict[int, FrameReader] = {}
        self._cache = FrameCache()

    def read(self, runs: Sequence[RunLike]) -> Bytes:
        """The bytes of some runs, joined; a single run of a local plain shard is not copied.

        Raises:
            ShardError: A shard is missing, damaged, or shorter than the run needs.
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

    def frames(self, index: int) -> FrameReader:
        """The reader of a compressed shard.

        Raises:
            ShardError: It is compressed by an unknown method, or does not say how large it is.
        """
        shard = self._shards[index]
        if shard.compression != ZSTD or shard.uncompressed_size is None:
            raise ShardError(
                "unknown compression",
                where=self._where(shard),
                expected=f"{ZSTD}, with the uncompressed size",
                found=shard.compression,
            )
        found = self._frames.get(index)
        if found is None:
            found = FrameReader(
                self._store, shard.filename, shard.size, shard.uncompressed_size, self._cache
            )
            found = self._frames.setdefault(index, found)
        return found

    def _read_run(self, run: RunLike) -> Bytes:
        if not 0 <= run.shard_index < len(self._shards):
            raise ShardError(
                "no such shard", expected=f"below {len(self._shards)}", found=run.shard_index
            )
        shard = self._shards[run.shard_index]
        try:
            if shard.compression is not None:
                return self.frames(run.shard_index).read(run.offset, run.size)
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
