"""GPU time of groups of dispatches, from timestamp queries, together with the host's clock.

WebGPU takes timestamps only at the beginning and end of compute passes, so each group that is timed
separately gets a pass of its own. Passes do not overlap, while dispatches within a pass may: the
sum over single dispatches is somewhat longer than the same program in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import Buffer, BufferSlice, BufferUsage
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch

FEATURE = "timestamp-query"
"""The WebGPU feature that timing needs."""

QUERIES = 4096
"""Most timestamps of a query set in WebGPU."""

WARM_UP_SECONDS = 0.5
"""Time after which an idle GPU has reached its full clock rate."""


@dataclass(frozen=True)
class Timed:
    """The times of one submission.

    Attributes:
        gpu: Beginning and end of each pass in seconds, float64 [passes, 2], on the GPU's clock,
            counted from the timer's first timestamp.
        encoding: Time of `time.perf_counter` when the host began to record.
        submitted: Time of `time.perf_counter` when the host had recorded and submitted.
        seen: Time of `time.perf_counter` when the host had read the timestamps, and so knew that
            the work was done.
    """

    gpu: npt.NDArray[np.float64]
    encoding: float
    submitted: float
    seen: float

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """GPU time of each pass in seconds, float64 [passes]."""
        return self.gpu[:, 1] - self.gpu[:, 0]


def tick_seconds(device: Device) -> float:
    """Return the seconds per tick of a device's timestamps.

    Raises:
        DeviceError: The device has no timestamps, or their unit is unknown.
    """
    if FEATURE not in device.features:
        raise DeviceError(
            "the adapter has no timestamp queries, so GPU time cannot be measured",
            where=device.info.name,
            hint="see `rdrr devices` for another adapter",
        )
    tick = device.timestamp_period * 1e-9
    if not 0 < tick < 1:
        raise DeviceError(
            "the unit of the adapter's timestamps is unknown",
            where=device.info.name,
            expected="between 0 and 1 second per tick",
            found=tick,
        )
    return tick


class Timer:
    """A timer that submits compute passes and measures them.

    Args:
        device: The device that runs the passes.

    Raises:
        DeviceError: The device has no timestamps, or their unit is unknown.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tick = tick_seconds(device)
        self._sets: list[Any] = []
        self._resolved = Buffer("timestamps", 0)
        self._origin: int | None = None

    def run(self, passes: Sequence[Sequence[BoundDispatch]], rows: int) -> Timed:
        """Run compute passes in one submission, wait for them, and return their times.

        Args:
            passes: The dispatches of each pass.
            rows: Token rows of the dispatches.

        Raises:
            DeviceError: No pass has taken any time, or one ended before it began.
        """
        self._prepare(len(passes))
        gpu = self._device.wgpu
        encoding = perf_counter()
        encoder = gpu.create_command_encoder(label="timed")
        for index, dispatches in enumerate(passes):
            which, at = divmod(2 * index, QUERIES)
            timed = encoder.begin_compute_pass(
                label="timed",
                timestamp_writes={
                    "query_set": self._sets[which],
                    "beginning_of_pass_write_index": at,
                    "end_of_pass_write_index": at + 1,
                },
            )
            self._device.encode(timed, dispatches, rows)
            timed.end()
        count = 2 * len(passes)
        for which in range(-(-count // QUERIES)):
            first = which * QUERIES
            part = min(QUERIES, count - first)
            encoder.resolve_query_set(self._sets[which], 0, part, self._resolved.gpu, 8 * first)
        gpu.queue.submit([encoder.finish()])
        self._device.counters.submits += 1
        submitted = perf_counter()
        raw = self._device.read(BufferSlice(self._resolved, 0, 8 * count))
        seen = perf_counter()
        ticks = raw.view(np.uint64).reshape(-1, 2)
        return Timed(self._in_seconds(ticks), encoding, submitted, seen)

    def _prepare(self, passes: int) -> None:
        """Create enough query sets and a large enough buffer for a number of passes."""
        gpu, sets = self._device.wgpu, -(-2 * passes // QUERIES)
        while len(self._sets) < sets:
            self._sets.append(gpu.create_query_set(type="timestamp", count=QUERIES))
        size = 8 * QUERIES * sets
        if self._resolved.size < size:
            usage = BufferUsage.QUERY_RESOLVE | BufferUsage.COPY_SRC
            resolved = gpu.create_buffer(label="timestamps", size=size, usage=usage)
            self._resolved = Buffer("timestamps", size, resolved)
            self._device.counters.buffer_creates += 1

    def _in_seconds(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        """Convert timestamps [passes, 2] to seconds since the timer's first timestamp."""
        where = self._device.info.name
        if (ticks[:, 1] < ticks[:, 0]).any():
            raise DeviceError("the adapter's clock runs backwards", where=where)
        if not (ticks[:, 1] > ticks[:, 0]).any():
            raise DeviceError(
                "the adapter's timestamps show no time at all",
                where=where,
                hint="its driver resolves timestamps to zeros, or its clock is too coarse",
            )
        if self._origin is None:
            self._origin = int(ticks[0, 0])
        # Subtract as integers: seconds since boot in float64 would lose the nanoseconds.
        return (ticks.astype(np.int64) - self._origin).astype(np.float64) * self._tick


def warm_up(
    device: Device, timer: Timer, passes: Sequence[Sequence[BoundDispatch]], rows: int
) -> None:
    """Run passes until the GPU has reached its full clock rate; a software adapter runs once."""
    spent, least = 0.0, 0.0 if device.info.software else WARM_UP_SECONDS
    while spent <= least:
        timed = timer.run(passes, rows)
        spent += timed.seen - timed.encoding
