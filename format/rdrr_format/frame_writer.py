"""The writer of a compressed shard's frames.

Every frame holds 1 MiB of the data, is compressed on its own by one thread with nothing but the
level to decide how, and carries a checksum of its content. So a part can be read without the rest,
and the bytes do not depend on how many threads made them. Reading is in
`rdrr_format.decompression`, the table behind the frames in `rdrr_format.seek_table`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from rdrr_format.compression import Compression
from rdrr_format.seek_table import encode_seek_table

FRAME_SIZE = 1 << 20


def compress_frame(data: bytes, level: int) -> bytes:
    """One frame with its content's size and checksum."""
    from zstandard import ZstdCompressor

    compressor = ZstdCompressor(
        level=level, write_checksum=True, write_content_size=True, write_dict_id=False, threads=0
    )
    return compressor.compress(data)


class FrameWriter:
    """Cuts bytes into frames, compresses them, and writes them in order with their table.

    Args:
        write: Takes the compressed bytes.
        compression: How.
        pool: Threads that compress; None compresses in the caller's.
        ahead: Frames that may be in the pool at a time.
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
        """Take more bytes, in a view of single bytes."""
        start = 0
        while start < len(data):
            count = min(FRAME_SIZE - len(self._content), len(data) - start)
            self._content += data[start : start + count]
            start += count
            if len(self._content) == FRAME_SIZE:
                self._finish_frame()

    def close(self) -> None:
        """Write the last frame and the table; the file stays the caller's to close."""
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
