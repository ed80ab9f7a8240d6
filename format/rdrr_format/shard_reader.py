"""The reader of shards: returns byte spans of them, and checks their sizes and hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rdrr_format.compression import ZSTD
from rdrr_format.decompression import FrameCache, FrameReader, check_content
from rdrr_format.errors import ShardError, StoreError
from rdrr_format.file_names import check_name
from rdrr_format.integrity import hash_chunks
from rdrr_format.shards import ShardLike, ShardSpan, SpanLike
from rdrr_format.stores import LocalStore, Store

Bytes = npt.NDArray[np.uint8]

_CHUNK_BYTES = 4 << 20
"""Bytes of a local shard that are hashed at a time."""


def wrong_hash(where: object, expected: str, found: str, hint: str = "") -> ShardError:
    """Return the error for a shard whose hash is not the one that the manifest declares.

    Args:
        where: Path or URL of the shard.
        expected: The declared hash.
        found: The hash of the shard's bytes.
        hint: Advice to append to that of getting the shard again.
    """
    advice = "the bytes were changed or damaged; get the shard again"
    return ShardError("wrong hash", where=where, expected=expected, found=found, hint=advice + hint)


class ShardReader:
    """Reads byte spans from the shards of a package.

    Args:
        store: Where the shards are.
        shards: Descriptions of the shards, in order.
        algorithm: Hash algorithm, a key of `rdrr_format.integrity.ALGORITHMS`.
    """

    def __init__(
        self, store: Store, shards: Sequence[ShardLike], algorithm: str = "sha256"
    ) -> None:
        self._store = store
        self._shards = shards
        self._algorithm = algorithm
        self._frames: dict[int, FrameReader] = {}
        self._cache = FrameCache()

    def read(self, spans: Sequence[SpanLike]) -> Bytes:
        """Return the bytes of some spans, concatenated.

        A single span of a local uncompressed shard is returned as a memory map, without a copy.

        Raises:
            ShardError: A shard is missing, damaged, or shorter than a span needs.
        """
        parts = [self._read_span(span) for span in spans]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])

    def read_range(self, spans: Sequence[SpanLike], start: int, size: int) -> Bytes:
        """Return bytes `start` to `start + size` of what `read` would return.

        Raises:
            ShardError: The spans, or a shard, hold fewer bytes.
        """
        parts: list[ShardSpan] = []
        at = 0
        for span in spans:
            low, high = max(start, at), min(start + size, at + span.size)
            if low < high:
                parts.append(ShardSpan(span.shard_index, span.offset + low - at, high - low))
            at += span.size
        covered = sum(part.size for part in parts)
        if covered != size:
            raise ShardError(
                "the range is outside the tensor", expected=f"{size} bytes", found=covered
            )
        contents = [self._read_span(part) for part in parts]
        if len(contents) == 1:
            return contents[0]
        return np.concatenate(contents or [np.empty(0, np.uint8)])

    def verify(self, index: int) -> None:
        """Compare a shard's size and hash with the declared ones.

        Raises:
            ShardError: The shard is missing, or has another size or another hash.
            FormatError: The hash algorithm is unknown.
        """
        shard = self._shards[index]
        where = self._where(shard)
        self.check_size(index)
        digest = hash_chunks(self._algorithm, self._chunks(shard))
        if digest != shard.hash.lower():
            raise wrong_hash(where, shard.hash, digest)

    def check_size(self, index: int) -> None:
        """Compare a shard's size with the declared one.

        Raises:
            ShardError: The shard is missing or has another size.
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
        """Return the reader of a compressed shard.

        Raises:
            ShardError: The compression method is unknown, the uncompressed size is not declared, or
                the shards of the package declare too much content.
        """
        shard = self._shards[index]
        if shard.compression != ZSTD or shard.uncompressed_size is None:
            raise ShardError(
                "unknown compression",
                where=self._where(shard),
                expected=f"{ZSTD}, with the uncompressed size",
                found=shard.compression,
            )
        reader = self._frames.get(index)
        if reader is None:
            check_content(self._shards, self._where(shard))
            reader = FrameReader(
                self._store, shard.filename, shard.size, shard.uncompressed_size, self._cache
            )
            reader = self._frames.setdefault(index, reader)
        return reader

    def _chunks(self, shard: ShardLike) -> Iterator[Bytes]:
        """Yield the bytes of a shard: a local one in chunks, any other with a single request."""
        step = _CHUNK_BYTES if isinstance(self._store, LocalStore) else max(1, shard.size)
        for first in range(0, shard.size, step):
            yield self._store.read(shard.filename, first, min(step, shard.size - first))

    def _read_span(self, span: SpanLike) -> Bytes:
        if not 0 <= span.shard_index < len(self._shards):
            raise ShardError(
                "no such shard", expected=f"below {len(self._shards)}", found=span.shard_index
            )
        shard = self._shards[span.shard_index]
        if span.offset < 0:
            raise ShardError(
                "the offset is negative",
                where=self._where(shard),
                expected="0 or more",
                found=span.offset,
            )
        try:
            if shard.compression is not None:
                return self.frames(span.shard_index).read(span.offset, span.size)
            data = self._store.read(shard.filename, span.offset, span.size)
        except StoreError as error:
            raise ShardError(error.message, where=self._where(shard)) from error
        if len(data) != span.size:
            raise ShardError(
                "shard is too short",
                where=self._where(shard),
                expected=f"{span.offset + span.size} bytes",
                found=f"{span.offset + len(data)} bytes",
            )
        return data

    def _where(self, shard: ShardLike) -> str:
        return f"{self._store.describe()}/{shard.filename}"
