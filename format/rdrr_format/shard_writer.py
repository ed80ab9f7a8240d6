"""The writer of shards: cuts one stream of bytes into files and hashes them as it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from rdrr_format.compression import ZSTD, Compression
from rdrr_format.frame_writer import FrameWriter
from rdrr_format.integrity import Hasher, new_hasher
from rdrr_format.shards import (
    ALIGNMENT,
    DEFAULT_SHARD_SIZE,
    ShardInfo,
    ShardSpan,
    align_up,
    plan_spans,
    shard_name,
)
from rdrr_format.stores import Store, store_errors


class ShardWriter:
    """Writes a stream of bytes and cuts it into shards.

    Args:
        store: Where the shards are written.
        shard_size: Uncompressed bytes of every shard but the last, which can be shorter.
        algorithm: Hash algorithm, a key of `rdrr_format.integrity.ALGORITHMS`.
        compression: How to compress every shard; None stores the bytes uncompressed.
        workers: Number of compressing threads; the bytes written do not depend on it.
        done: Shards that an earlier run finished; writing continues after them.
        position: Bytes of the stream that those shards hold.
        finished: Called with each shard when it is complete.
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
        new_hasher(algorithm)  # refuses an unknown algorithm before anything is written
        self.position = position

    def align(self, alignment: int = ALIGNMENT) -> None:
        """Pad with zeros up to the next multiple of `alignment`."""
        self.write(bytes(align_up(self.position, alignment) - self.position))

    def write(self, data: Any) -> tuple[ShardSpan, ...]:
        """Append bytes.

        Args:
            data: Anything with a contiguous buffer: bytes, an array, a memory map.

        Returns:
            The byte spans in the shards that hold them.

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
        """Finish the last shard and return the descriptions of all shards."""
        if self._file is not None:
            self._finish()
        self._stop_pool()
        return tuple(self._done)

    def abort(self) -> None:
        """Close the open file; the caller removes what was written so far."""
        self._stop_pool()
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.file.close()
            except OSError:
                # Closing flushes, so it can fail too; the caller reports the first error.
                return

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
    """A shard that is being written, with its size and hash so far."""

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
