"""The steps of a load, each by itself: reading shards, hashing them, and sending them to the GPU.

Nothing is parsed, repacked or allocated for a model, so a load can hardly be faster than the
slowest of these.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_device.arena import arena
from rdrr_device.buffers import BufferSlice, BufferUsage
from rdrr_device.device import Device, open_device
from rdrr_format.file_hash import hash_file
from rdrr_format.integrity import new_hasher

PIECE_BYTES = 16 << 20
"""Bytes that are sent to the GPU at a time."""

STAGING_BUFFERS = 4
"""Staging buffers that are filled in turn."""

Bytes = npt.NDArray[np.uint8]


def read_seconds(shards: Sequence[Path], threads: int) -> float:
    """Read all shards through one buffer per thread and return the seconds."""
    return _seconds(lambda: _in_threads(_read, shards, threads))


def hash_seconds(shards: Sequence[Path], algorithm: str, threads: int) -> float | None:
    """Hash all shards and return the seconds; None if the algorithm is not installed."""
    with suppress(ImportError):
        new_hasher(algorithm)
        return _seconds(
            lambda: _in_threads(partial(hash_file, algorithm=algorithm), shards, threads)
        )
    return None


def upload_seconds(shards: Sequence[Path], adapter: str | None) -> dict[str, float]:
    """Send the bytes of all shards to the GPU in several ways and return the seconds of each."""
    maps = [np.memmap(path, np.uint8, "r") for path in shards]
    with closing(open_device(adapter)) as device, arena(device, "floor") as owner:
        target = owner.empty("target", PIECE_BYTES)
        ways: dict[str, Callable[[], None]] = {
            "write_buffer": lambda: _write_buffer(device, target, maps),
            "mapped staging": lambda: _staging(device, target, maps, 1),
            "mapped staging, 4 threads": lambda: _staging(device, target, maps, 4),
        }
        seconds = {}
        for name, way in ways.items():
            way()  # the first run allocates host memory
            seconds[name] = min(_seconds(way) for _ in range(3))
        return seconds


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _in_threads(run: Callable[[Path], Any], shards: Sequence[Path], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        deque(pool.map(run, shards), maxlen=0)


def _read(path: Path) -> None:
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _pieces(maps: Sequence[Bytes]) -> Iterator[Bytes]:
    for shard in maps:
        for first in range(0, shard.size // 8 * 8, PIECE_BYTES):
            yield shard[first : min(first + PIECE_BYTES, shard.size // 8 * 8)]


def _write_buffer(device: Device, target: BufferSlice, maps: Sequence[Bytes]) -> None:
    for piece in _pieces(maps):
        device.write(target, piece)
    device.wait()


def _staging(device: Device, target: BufferSlice, maps: Sequence[Bytes], threads: int) -> None:
    """Copy through staging buffers that stay mapped while the device does not read them."""
    gpu = device.wgpu
    with _staging_buffers(gpu) as buffers, ThreadPoolExecutor(threads) as pool:
        mapped: deque[tuple[Any, Any]] = deque((buffer, None) for buffer in buffers)
        for piece in _pieces(maps):
            buffer, promise = mapped.popleft()
            if promise is not None:
                promise.sync_wait()
            view = np.frombuffer(buffer._experimental_get_mapped_range(0, piece.size), np.uint8)
            part = -(-piece.size // threads)
            starts = range(0, piece.size, part)
            copy = partial(_copy, view, piece, part)
            deque(pool.map(copy, starts), maxlen=0)
            del view, copy
            buffer.unmap()
            encoder = gpu.create_command_encoder()
            encoder.copy_buffer_to_buffer(buffer, 0, target.buffer.gpu, target.offset, piece.size)
            gpu.queue.submit([encoder.finish()])
            mapped.append((buffer, buffer.map_async("WRITE", 0, PIECE_BYTES)))
        for _, promise in mapped:
            if promise is not None:
                promise.sync_wait()


def _copy(view: Bytes, piece: Bytes, size: int, first: int) -> None:
    np.copyto(view[first : first + size], piece[first : first + size])


@contextmanager
def _staging_buffers(gpu: Any) -> Iterator[list[Any]]:
    usage = BufferUsage.MAP_WRITE | BufferUsage.COPY_SRC
    buffers = [
        gpu.create_buffer(size=PIECE_BYTES, usage=usage, mapped_at_creation=True)
        for _ in range(STAGING_BUFFERS)
    ]
    try:
        yield buffers
    finally:
        for buffer in buffers:
            buffer.destroy()
