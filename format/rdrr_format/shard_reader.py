"""Reading runs of bytes back from shards, and holding shards to their size and hash."""

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

_PIECE = 4 << 20
"""Bytes of a local shard that are hashed at a time."""


def wrong_hash(where: object, expected: str, found: str, hint: str = "") -> ShardError:
    """The error of a shard whose bytes are not those that the manifest was written for.

    Args:
        where: Path or URL of the shard.
        expected: The declared hash.
        found: The hash of its bytes.
        hint: What else can be done than getting the shard again.
    """
    advice = "the bytes were changed or damaged; get the shard again"
    return ShardError("wrong hash", where=where, expected=expected, found=found, hint=advice + hint)


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

    def read(self, runs: Sequence[SpanLike]) -> Bytes:
        """The bytes of some runs, joined; a single run of a local plain shard is not copied.

        Raises:
            ShardError: A shard is missing, damaged, or shorter than the run needs.
        """
        parts = [self._read_run(run) for run in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.uint8)])

    def read_range(self, runs: Sequence[SpanLike], start: int, size: int) -> Bytes:
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
        found = hash_chunks(self._algorithm, self._pieces(shard))
        if found != shard.hash.lower():
            raise wrong_hash(where, shard.hash, found)

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
            ShardError: It is compressed by an unknown method, or does not say how large it is, or
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
        found = self._frames.get(index)
        if found is None:
            check_content(self._shards, self._where(shard))
            found = FrameReader(
                self._store, shard.filename, shard.size, shard.uncompressed_size, self._cache
            )
            found = self._frames.setdefault(index, found)
        return found

    def _pieces(self, shard: ShardLike) -> Iterator[Bytes]:
        """The bytes of a shard; a piece from elsewhere is a request, so those come at once."""
        step = _PIECE if isinstance(self._store, LocalStore) else max(1, shard.size)
        for first in range(0, shard.size, step):
            yield self._store.read(shard.filename, first, min(step, shard.size - first))

    def _read_run(self, run: SpanLike) -> Bytes:
        if not 0 <= run.shard_index < len(self._shards):
            raise ShardError(
                "no such shard", expected=f"below {len(self._shards)}", found=run.shard_index
            )
        shard = self._shards[run.shard_index]
        if run.offset < 0:
            raise ShardError(
                "no such place", where=self._where(shard), expected="0 or more", found=run.offset
            )
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
