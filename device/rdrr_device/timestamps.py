"""GPU time of runs of dispatches, from timestamp queries, beside the host's clock.

WebGPU takes timestamps at the ends of compute passes only, so what is to be timed by itself gets a
pass of its own. Passes do not overlap, while dispatches inside one may: the sum over single
dispatches is somewhat longer than the same program in one pass. What the figures are for is not
this module's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import DeviceError

from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch

FEATURE = "timestamp-query"
"""What a device needs, to be timed."""

QUERIES = 4096
"""What a query set may hold."""

WARM_UP_SECONDS = 0.5
"""A GPU that idled takes about so long to reach its clocks."""


@dataclass(frozen=True)
class Timed:
    """One submission.

    Attributes:
        gpu: Begin and end of each pass in seconds, float64 [passes, 2], on the GPU's clock, from
            the timer's first timestamp on.
        encoding: When the host began to record, on the clock of `time.perf_counter`.
        submitted: When it had recorded and submitted.
        seen: When it had the timestamps, and so knew that the work was done.
    """

    gpu: npt.NDArray[np.float64]
    encoding: float
    submitted: float
    seen: float

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """GPU time of each pass."""
        return self.gpu[:, 1] - self.gpu[:, 0]


def tick_seconds(device: Device) -> float:
    """Seconds of a tick of a device's timestamps.

    Raises:
        DeviceError: The device has no timestamps, or they have no known unit.
    """
    if FEATURE not in device.features:
        raise DeviceError(
            "the adapter has no timestamp queries, so GPU time cannot be measured",
            where=device.info.name,
            hint="see `rdrr devices` for another adapter",
        )
    tick = device.timestamp_period * 1e-9
    if not 0 < tick < 1:
        raise DeviceError("timestamps have no unit", where=device.info.name)
    return tick


class Timer:
    """Submits passes and times them.

    Args:
        device: Where they run.

    Raises:
        DeviceError: The device has no timestamps, or they have no known unit.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tick = tick_seconds(device)
        self._sets: list[Any] = []
        self._resolved: Any = None
        self._origin: int | None = None

    def run(self, passes: Sequence[Sequence[BoundDispatch]], rows: int) -> Timed:
        """Run passes one after the other, in one submission, and wait for them.

        Args:
            passes: What is timed together, each a compute pass.
            rows: Token rows.

        Raises:
            DeviceError: The device reports no time, or time that runs backwards.
        """
        self._prepare(len(passes))
        gpu = self._device.wgpu
        encoding = perf_counter()
        encoder = gpu.create_command_encoder(label="timed")
        for index, one in enumerate(passes):
            which, at = divmod(2 * index, QUERIES)
            timed = encoder.begin_compute_pass(
                label="timed",
                timestamp_writes={
                    "query_set": self._sets[which],
                    "beginning_of_pass_write_index": at,
                    "end_of_pass_write_index": at + 1,
                },
            )
            self._device.encode(timed, one, rows)
            timed.end()
        count = 2 * len(passes)
        for which in range(-(-count // QUERIES)):
            first = which * QUERIES
            part = min(QUERIES, count - first)
            encoder.resolve_query_set(self._sets[which], 0, part, self._resolved, 8 * first)
        gpu.queue.submit([encoder.finish()])
        self._device.counters.submits += 1
        submitted = perf_counter()
        raw = self._device.read(BufferSlice(self._resolved, 0, 8 * count))
        seen = perf_counter()
        ticks = raw.view(np.uint64).reshape(-1, 2)
        return Timed(self._in_seconds(ticks), encoding, submitted, seen)

    def _prepare(self, passes: int) -> None:
        """Query sets and a buffer for a number of passes."""
        import wgpu

        gpu, sets = self._device.wgpu, -(-2 * passes // QUERIES)
        while len(self._sets) < sets:
            self._sets.append(gpu.create_query_set(type="timestamp", count=QUERIES))
        if self._resolved is None or self._resolved.size < 8 * QUERIES * sets:
            usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            self._resolved = gpu.create_buffer(
                label="timestamps", size=8 * QUERIES * sets, usage=usage
            )
            self._device.counters.buffer_creates += 1

    def _in_seconds(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        where = self._device.info.name
        if (ticks[:, 1] < ticks[:, 0]).any():
            raise DeviceError("the adapter's clock runs backwards", where=where)
        if not (ticks[:, 1] > ticks[:, 0]).any():
            raise DeviceError(
                "the adapter reports no time at all",
                where=where,
                hint="its driver resolves timestamps to zeros, or its clock is too coarse",
            )
        if self._origin is None:
            self._origin = int(ticks[0, 0])
        # Differences of integers first: seconds since boot leave float64 no nanoseconds.
        return (ticks.astype(np.int64) - self._origin).astype(np.float64) * self._tick


def warm_up(
    device: Device, timer: Timer, passes: Sequence[Sequence[BoundDispatch]], rows: int
) -> None:
    """Run until the clocks are up; a CPU has no such clocks, and runs once."""
    spent, wanted = 0.0, 0.0 if device.info.software else WARM_UP_SECONDS
    while spent <= wanted:
        timed = timer.run(passes, rows)
        spent += timed.seen - timed.encoding
