"""Read any part of a compressed shard; only the frames that hold it are fetched and decoded.

No memory is allocated on the word of a frame: its stated size must equal the one in the seek table,
and the sizes in the table must add up to what the manifest declares. If they do not, the error
names the frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cached_property
from threading import Lock

import numpy as np

from rdrr_format.errors import ShardError
from rdrr_format.seek_table import SeekTable, read_seek_table
from rdrr_format.shards import ShardLike
from rdrr_format.stores import Bytes, Store

FREE_CONTENT = 1 << 30
"""Uncompressed bytes that the shards of a package may always hold, however small the files are."""

MAX_EXPANSION = 64
"""Further uncompressed bytes that are allowed for each byte of the files.

Weights shrink to a third at best, so what expands more is not a model but a decompression bomb.
"""

_FETCH = 16 << 20
"""Compressed bytes to fetch at a time, unless a single frame is larger."""

_KEPT = 16 << 20
"""Bytes of decoded frames to keep for all shards of a package together."""


def check_content(shards: Iterable[ShardLike], where: str | None = None) -> None:
    """Refuse compressed shards that declare implausibly much content for the size of their files.

    Args:
        shards: All shards of a package.
        where: The shard that is about to be read, for error messages.

    Raises:
        ShardError: They declare more than `FREE_CONTENT` and `MAX_EXPANSION` allow.
    """
    packed = [shard for shard in shards if shard.compression is not None]
    content = sum(shard.uncompressed_size or 0 for shard in packed)
    limit = FREE_CONTENT + MAX_EXPANSION * sum(shard.size for shard in packed)
    if content > limit:
        raise ShardError(
            "the compressed shards declare too much content",
            where=where,
            expected=f"at most {limit} bytes",
            found=f"{content} bytes",
            hint="write them without compression",
        )


class FrameCache:
    """A cache of the most recently decoded frames of all shards of a package.

    Consecutive parts of a tensor usually meet within a frame, which would be decoded twice without
    the cache.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], Bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, name: str, frame: int) -> Bytes | None:
        """Return a frame's content if it is in the cache."""
        with self._lock:
            return self._kept.get((name, frame))

    def put(self, name: str, frame: int, content: Bytes) -> None:
        """Add a frame's content, and drop the oldest ones beyond the cache's size."""
        with self._lock:
            if (name, frame) in self._kept:
                return
            self._kept[name, frame] = content
            self._size += len(content)
            while self._size > _KEPT:
                self._size -= len(self._kept.popitem(last=False)[1])


class FrameReader:
    """Reads parts of one compressed shard; safe to use from several threads.

    Args:
        store: Where the shard is.
        name: File name of the shard.
        file_size: Declared bytes of the file.
        data_size: Declared uncompressed bytes.
        cache: Cache shared with the readers of the other shards.
    """

    def __init__(
        self, store: Store, name: str, file_size: int, data_size: int, cache: FrameCache
    ) -> None:
        self._store = store
        self._name = name
        self._file_size = file_size
        self._data_size = data_size
        self._cache = cache

    @cached_property
    def table(self) -> SeekTable:
        """The seek table, read when it is first needed.

        Raises:
            ShardError: The table is missing, or contradicts the declared sizes.
        """
        return read_seek_table(self._fetch, self._file_size, self._data_size, self._where)

    def check(self) -> None:
        """Read and check the seek table, without decoding anything.

        Raises:
            ShardError: The table is missing, or contradicts the declared sizes.
            StoreError: The shard cannot be read.
        """
        _ = self.table

    def read(self, start: int, size: int) -> Bytes:
        """Return bytes `start` to `start + size` of the uncompressed content.

        Raises:
            ShardError: The content is shorter, or a frame is damaged.
            StoreError: The shard cannot be read.
        """
        if start < 0 or start + size > self._data_size:
            raise ShardError(
                "shard is too short",
                where=self._where,
                expected=f"{start + size} bytes",
                found=f"{self._data_size} bytes",
            )
        # Reading the table checks the declared size, before memory of that size is allocated.
        starts = self.table.starts
        out = np.empty(size, np.uint8)
        for frame, content in self._contents(self.table.covering(start, size)):
            at = int(starts[frame])
            low, high = max(start, at), min(start + size, at + len(content))
            out[low - start : high - start] = content[low - at : high - at]
        return out

    def _contents(self, frames: range) -> Iterator[tuple[int, Bytes]]:
        """Yield decoded frames in order; the first and the last are kept in the cache."""
        for group in self._groups(frames):
            first = int(self.table.offsets[group[0]])
            cached = [self._cache.get(self._name, frame) for frame in group]
            if all(content is not None for content in cached):
                raw = np.empty(0, np.uint8)
            else:
                raw = self._fetch(first, int(self.table.offsets[group[-1] + 1]) - first)
            for frame, content in zip(group, cached, strict=True):
                if content is None:
                    low, high = self.table.offsets[frame : frame + 2] - first
                    content = self._decode(frame, raw[low:high])
                    if frame in (frames[0], frames[-1]):
                        self._cache.put(self._name, frame, content)
                yield frame, content

    def _groups(self, frames: range) -> Iterator[range]:
        """Yield ranges of consecutive frames to fetch with one request each."""
        first = frames.start
        for frame in frames:
            size = self.table.offsets[frame + 1] - self.table.offsets[first]
            if size > _FETCH and frame > first:
                yield range(first, frame)
                first = frame
        if first < frames.stop:
            yield range(first, frames.stop)

    def _decode(self, frame: int, raw: Bytes) -> Bytes:
        from zstandard import ZstdDecompressor, ZstdError, get_frame_parameters

        size = int(self.table.starts[frame + 1] - self.table.starts[frame])
        if size == 0:  # a skippable frame
            return np.empty(0, np.uint8)
        data = raw.tobytes()
        try:
            stated = get_frame_parameters(data).content_size
            if stated != size:
                raise ShardError(
                    f"the size of frame {frame} contradicts the seek table",
                    where=self._where,
                    expected=f"{size} bytes",
                    found=f"{stated} bytes",
                )
            content = ZstdDecompressor().decompress(data, size, allow_extra_data=False)
        except ZstdError as error:
            raise ShardError(
                f"frame {frame} cannot be decompressed",
                where=self._where,
                found=error,
                hint="the bytes were changed or damaged; get the shard again",
            ) from error
        return np.frombuffer(content, np.uint8)

    def _fetch(self, offset: int, size: int) -> Bytes:
        raw = self._store.read(self._name, offset, size)
        if len(raw) != size:
            raise ShardError(
                "shard is too short",
                where=self._where,
                expected=f"{offset + size} bytes",
                found=f"{offset + len(raw)} bytes",
            )
        return raw

    @property
    def _where(self) -> str:
        return f"{self._store.describe()}/{self._name}"
