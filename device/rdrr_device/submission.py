"""Submit a program, which is a sequence of bound dispatches, to the queue.

Models run through `PassSubmitter`: one compute pass in one submission. `Device.submitting` replaces
it by another `Submitter` for a while, so that benchmarks can compare other ways of submitting the
same dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rdrr_device.handle import DeviceHandle
from rdrr_device.pipelines import BoundDispatch, Recorder

REMEMBERED_PROGRAMS = 16
"""Programs whose division into parts is kept."""

MANY_ROWS = 128
"""Token rows from which the GPU needs much longer for a dispatch than the host to record it."""


@dataclass(frozen=True)
class Parts:
    """The division of a program into parts: the GPU runs one while the host records the next.

    Beside an H200, the host takes about 200 us for a submission and 6 us more for each dispatch.

    Attributes:
        first: Dispatches of the first part.
        most: Most dispatches of a part; each has up to `GROWTH` times as many as the one before.
        last: Dispatches of the last part; 0 for what is left of the others.
    """

    first: int
    most: int
    last: int = 0

    def of(self, bound: Sequence[BoundDispatch]) -> Iterator[Sequence[BoundDispatch]]:
        """Yield the parts of a program; the last of those that grow may have half as many more."""
        start, size = 0, self.first
        end = len(bound) - self.last if len(bound) > self.first + self.last else len(bound)
        while 2 * (end - start) >= 3 * size:
            yield bound[start : start + size]
            start, size = start + size, min(GROWTH * size, self.most)
        for first, behind in ((start, end), (end, len(bound))):
            if first < behind:
                yield bound[first:behind]


GROWTH = 4

PARTS_OF_MANY_ROWS = Parts(first=8, most=96, last=16)
"""Parts of a program for many rows. The first is short, since the GPU waits for it. The last takes
the GPU longer than the host to wake up, but not much longer, since the host stays awake for it
(`Native.read`). The others are not too long, since a GPU that runs a dispatch in 10 us waits for
each of them."""

PARTS_OF_FEWER_ROWS = Parts(first=48, most=48)
"""Parts of a program for fewer rows, whose dispatches take the GPU hardly longer than the host."""


class Submitter(Protocol):
    """An object that runs programs on a device.

    Attributes:
        fresh_staging: Whether each readback gets a new staging buffer instead of a reused one.
    """

    fresh_staging: bool

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order for `rows` token rows, `times` times over."""


class PassSubmitter:
    """A submitter that records a program into one compute pass and submits it.

    Args:
        device: The device.
        recorder: Recorder of dispatches.
        divides: Whether long programs are submitted in parts: all for at least `MANY_ROWS` token
            rows, and those for which an idle GPU waits.
    """

    fresh_staging = False

    def __init__(self, device: DeviceHandle, recorder: Recorder, *, divides: bool = True) -> None:
        self._device = device
        self._recorder = recorder
        self._divides = divides
        self._split: dict[tuple[int, Parts], tuple[Sequence[BoundDispatch], ...]] = {}

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """See `Submitter.run`."""
        many = rows >= MANY_ROWS
        if self._divides and times == 1 and (many or self._device.is_idle):
            for part in self._parts(bound, PARTS_OF_MANY_ROWS if many else PARTS_OF_FEWER_ROWS):
                self._submit(part, rows, times)
        else:
            self._submit(bound, rows, times)

    def _parts(
        self, bound: Sequence[BoundDispatch], parts: Parts
    ) -> tuple[Sequence[BoundDispatch], ...]:
        """Return the parts that a program is submitted in.

        Repeated calls return the same objects, since the recorder remembers them by identity.
        """
        key = (id(bound), parts)
        cached = self._split.get(key)
        if cached is None or cached[0] is not bound:
            cached = self._split[key] = (bound, *parts.of(bound))
            while len(self._split) > REMEMBERED_PROGRAMS:
                self._split.pop(next(iter(self._split)))
        return cached[1:]

    def _submit(self, bound: Sequence[BoundDispatch], rows: int, times: int) -> None:
        device, timer = self._device, self._device.timer
        if timer is not None:
            timer.reserve(1)
        writes = timer.writes() if timer is not None else None
        encoder = device.wgpu.create_command_encoder(label="program")
        compute_pass = encoder.begin_compute_pass(label="program", timestamp_writes=writes)
        for _ in range(times):
            device.counters.dispatches += self._recorder.record(compute_pass, bound, rows)
        compute_pass.end()
        commands = encoder.finish()
        if device.native is not None:
            device.programs = (device.programs[1], device.native.submit(device.wgpu, commands))
        else:
            device.wgpu.queue.submit([commands])
        device.counters.submits += 1
