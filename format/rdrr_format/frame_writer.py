"""The writer of a compressed shard: independent frames, followed by a seek table.

Every frame holds 1 MiB of the data and a checksum of it, and is compressed by one thread without
reference to other frames. So any part of a shard can be read without the rest, and the bytes do not
depend on the number of threads. `rdrr_format.decompression` reads such shards, and
`rdrr_format.seek_table` defines the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from rdrr_format.compression import Compression
from rdrr_format.seek_table import encode_seek_table

FRAME_SIZE = 1 << 20
"""Uncompressed bytes of every frame but the last, which can be shorter."""


def compress_frame(data: bytes, level: int) -> bytes:
    """Compress bytes to one frame, which states the size and the checksum of its content."""
    from zstandard import ZstdCompressor

    compressor = ZstdCompressor(
        level=level, write_checksum=True, write_content_size=True, write_dict_id=False, threads=0
    )
    return compressor.compress(data)


class FrameWriter:
    """Cuts bytes into frames, compresses them, and writes them in order, then their seek table.

    Args:
        write: Called with the compressed bytes, in order.
        compression: The compression level.
        pool: Threads that compress; None compresses in the calling thread.
        ahead: Largest number of frames in the pool at a time.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        compression: Compression,
        pool: ThreadPoolExecutor | None = None,
        ahead: int = 1,
    ) -> None:
        self._write = write
        self._level = compression.level
        self._pool = pool
        self._ahead = ahead
        self._content = bytearray()
        self._pending: deque[tuple[int, Future[bytes]]] = deque()
        self._sizes: list[tuple[int, int]] = []

    def write(self, data: memoryview) -> None:
        """Append bytes, given as a view of type uint8."""
        start = 0
        while start < len(data):
            count = min(FRAME_SIZE - len(self._content), len(data) - start)
            self._content += data[start : start + count]
            start += count
            if len(self._content) == FRAME_SIZE:
                self._finish_frame()

    def close(self) -> None:
        """Write the last frame and the seek table; the caller closes the file."""
        if self._content:
            self._finish_frame()
        while self._pending:
            self._write_oldest()
        self._write(encode_seek_table(self._sizes))

    def _finish_frame(self) -> None:
        content = bytes(self._content)
        self._content.clear()
        if self._pool is None:
            self._write_frame(len(content), compress_frame(content, self._level))
            return
        future = self._pool.submit(compress_frame, content, self._level)
        self._pending.append((len(content), future))
        if len(self._pending) > self._ahead:
            self._write_oldest()

    def _write_oldest(self) -> None:
        size, future = self._pending.popleft()
        self._write_frame(size, future.result())

    def _write_frame(self, size: int, frame: bytes) -> None:
        self._write(frame)
        self._sizes.append((len(frame), size))
