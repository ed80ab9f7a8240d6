"""Check the hashes of a package's shards while they are loaded.

Local shards are hashed in separate threads while the caller reads them, and shards whose hash is
right are remembered (`rdrr_format.verified_files`). Remote shards are downloaded once to a local
copy, hashed during the download, and read from that copy, since a server could return other bytes
the second time.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rdrr_format.errors import FormatError, ShardError
from rdrr_format.file_hash import changed_meanwhile, hash_file
from rdrr_format.file_state import FileState
from rdrr_format.hub import HubStore
from rdrr_format.integrity import new_hasher
from rdrr_format.shard_reader import wrong_hash
from rdrr_format.stores import LocalStore, Store, store_errors
from rdrr_format.verified_files import VerifiedFiles

from rdrr_manifests.models import Manifest, Shard
from rdrr_manifests.package import Package
from rdrr_manifests.rules.files import is_doppler_hash

MAX_HASH_THREADS = 8
"""Most shards that are hashed at the same time, on a machine with as many processors."""

MAX_DOWNLOADS = 2
"""Most shards that are downloaded at the same time; each may be in memory as a whole."""

_LOAD_ANYWAY = ", or load what is there with `verify` none"


@contextmanager
def checked_shards(package: Package, verify: str) -> Iterator[tuple[str, ...]]:
    """Stage a package's shards locally for a `with` block, and check them before the block ends.

    If the check raises an error on leaving the block, nothing that was loaded may be used.

    Args:
        package: The package that is loaded within the block.
        verify: `full` hashes every shard, `cached` only shards that have changed since they were
            last verified, `none` no shard.

    Yields:
        One line for each thing that could not be checked; usually none.

    Raises:
        ShardError: A shard's hash is not that of the manifest, or a shard changed while it was
            loaded.
        StoreError: A shard cannot be downloaded or read.
    """
    package.fetch()
    if verify == "none":
        yield ()
        return
    reason = _unverifiable(package.manifest)
    if reason is not None:
        yield (reason,)
        return
    store = package.store
    if not isinstance(store, LocalStore | HubStore):
        with tempfile.TemporaryDirectory(prefix="rdrr-", ignore_cleanup_errors=True) as folder:
            copies = LocalStore(folder)
            _download(package, copies)
            with package.reading_shards_from(copies):
                yield ()
        return
    with _Check(package, store, skip_verified=verify == "cached") as check:
        try:
            yield ()
        except FormatError:
            check.finish()  # a wrong hash explains the error better
            raise
        check.finish()


def _unverifiable(manifest: Manifest) -> str | None:
    """Return why the manifest's hashes cannot be computed here, or None if they can."""
    name = manifest.hash_algorithm
    try:
        new_hasher(name)
    except ImportError:
        return f"the shards were not checked: the package {name} is not installed"
    return None


@dataclass(frozen=True)
class _LocalShard:
    """A local shard.

    Attributes:
        shard: The manifest's entry.
        path: Path of the file, without symbolic links.
        state: State of the file when loading began.
    """

    shard: Shard
    path: Path
    state: FileState


class _Check:
    """A check of a package's local shards, which hashes them in threads while they are read.

    Args:
        package: The package.
        store: The store that holds the shards.
        skip_verified: Skip the shards that are remembered as verified.
    """

    def __init__(
        self, package: Package, store: LocalStore | HubStore, *, skip_verified: bool
    ) -> None:
        self._algorithm = package.manifest.hash_algorithm
        self._store = store
        self._memory = VerifiedFiles()
        self._shards = [_located(store, shard) for shard in package.manifest.shards]
        self._wanted = [
            local for local in self._shards if not (skip_verified and self._is_remembered(local))
        ]
        self._stopped = threading.Event()
        self._settled: list[tuple[Path, FileState, str]] = []

    def __enter__(self) -> _Check:
        self._pool = ThreadPoolExecutor(_threads(len(self._wanted)), "hash")
        self._running: list[Future[None]] = [
            self._pool.submit(self._check, local) for local in self._wanted
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def finish(self) -> None:
        """Wait for all hashes, and remember the shards as verified.

        Raises:
            ShardError: A hash is wrong, or a file has changed since loading began.
            StoreError: A shard cannot be read.
        """
        for future in self._running:
            future.result()
        for local in self._shards:
            with store_errors(local.path):
                if FileState.at(local.path) != local.state:
                    raise changed_meanwhile(local.path)
        self._memory.add(self._settled)

    def _check(self, local: _LocalShard) -> None:
        began = time.time_ns()
        with store_errors(local.path):
            state, digest = hash_file(local.path, self._algorithm, self._stopped.is_set)
        if self._stopped.is_set():
            return
        if state != local.state:
            raise changed_meanwhile(local.path)
        _require_hash(digest, local.shard, self._algorithm, self._store, local.path)
        if state.is_settled(began):
            self._settled.append((local.path, state, self._stated(local.shard)))

    def _is_remembered(self, local: _LocalShard) -> bool:
        return self._memory.has(local.path, local.state, self._stated(local.shard))

    def _stated(self, shard: Shard) -> str:
        return f"{self._algorithm}:{shard.hash.lower()}"


def _located(store: LocalStore | HubStore, shard: Shard) -> _LocalShard:
    readable = store.readable(shard.filename)
    with store_errors(readable):
        path = readable.resolve(strict=True)
        return _LocalShard(shard, path, FileState.at(path))


def _threads(shards: int) -> int:
    return max(1, min(shards, os.cpu_count() or 1, MAX_HASH_THREADS))


def _download(package: Package, copies: LocalStore) -> None:
    """Copy all shards of a package into a folder and check their sizes and hashes.

    Raises:
        ShardError: The size or hash of a shard is not that of the manifest.
        StoreError: A shard cannot be downloaded or stored.
    """
    manifest, stopped = package.manifest, threading.Event()

    def copy(shard: Shard) -> None:
        _copy(package.store, copies, shard, manifest.hash_algorithm, stopped)

    with ThreadPoolExecutor(MAX_DOWNLOADS, "download") as pool:
        running = [pool.submit(copy, shard) for shard in manifest.shards]
        try:
            for future in running:
                future.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _copy(
    store: Store, copies: LocalStore, shard: Shard, algorithm: str, stopped: threading.Event
) -> None:
    """Copy one shard in pieces, hashing it on the way, until it is complete or `stopped` is set."""
    from rdrr_format.remote_stores import piece_size  # an HTTP client, with TLS

    where = f"{store.describe()}/{shard.filename}"
    running = new_hasher(algorithm)
    step = piece_size(store, shard.filename, shard.size)
    with store_errors(copies.path(shard.filename)), copies.open_write(shard.filename) as file:
        for first in range(0, shard.size, step):
            piece = store.read(shard.filename, first, min(step, shard.size - first))
            if stopped.is_set():
                return
            if len(piece) != min(step, shard.size - first):
                actual = f"{first + len(piece)} bytes"
                expected = f"{shard.size} bytes"
                raise ShardError("shard is too short", where=where, expected=expected, found=actual)
            running.update(piece.data)
            file.write(piece.data)
    _require_hash(running.hexdigest(), shard, algorithm, copies, where)


def _require_hash(digest: str, shard: Shard, algorithm: str, store: Store, where: object) -> None:
    """Check a shard's hash, which for `blake3` may also be that of the public runtime.

    Raises:
        ShardError: The hash is wrong.
    """
    matches = digest == shard.hash.lower()
    if not matches and not (algorithm == "blake3" and is_doppler_hash(shard, store)):
        raise wrong_hash(where, shard.hash, digest, _LOAD_ANYWAY)
