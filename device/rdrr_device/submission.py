"""Submit a program, which is a sequence of bound dispatches, to the queue.

Models run through `PassSubmitter`: one compute pass in one submission. `Device.submitting` replaces
it by another `Submitter` for a while, so that benchmarks can compare other ways of submitting the
same dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from rdrr_device.handle import DeviceHandle
from rdrr_device.pipelines import BoundDispatch, Recorder

REMEMBERED_PROGRAMS = 16
"""Programs whose division into parts is kept."""

MANY_ROWS = 128
"""Token rows from which a program is submitted in several parts."""

FIRST_DISPATCHES = 24
"""Dispatches in the first part of such a program.

The part is short so that the GPU starts early, while the host records the rest.
"""

GROWTH = 4
"""Ratio of the lengths of successive parts.

The host records a dispatch in about a fifth of the time that the GPU needs to run it, so each part
is recorded while the one before it runs.
"""


class Submitter(Protocol):
    """An object that runs programs on a device.

    Attributes:
        fresh_staging: Whether each readback gets a new staging buffer instead of a reused one.
    """

    fresh_staging: bool

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order for `rows` token rows, `times` times over."""
        ...


class PassSubmitter:
    """A submitter that records a program into one compute pass and submits it.

    Args:
        device: The device.
        recorder: Recorder of dispatches.
        first: Dispatches in the first part of a program of at least `MANY_ROWS` token rows; the
            others follow in parts of growing length. 0 submits every program as a whole.
    """

    fresh_staging = False

    def __init__(
        self, device: DeviceHandle, recorder: Recorder, *, first: int = FIRST_DISPATCHES
    ) -> None:
        self._device = device
        self._recorder = recorder
        self._first = first
        self._split: dict[int, tuple[Sequence[BoundDispatch], ...]] = {}

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """See `Submitter.run`."""
        for part in self._parts(bound) if rows >= MANY_ROWS and times == 1 else (bound,):
            self._submit(part, rows, times)

    def _parts(self, bound: Sequence[BoundDispatch]) -> tuple[Sequence[BoundDispatch], ...]:
        """Return the parts that a program is submitted in.

        Repeated calls return the same objects, since the recorder remembers them by identity.
        """
        if not self._first or len(bound) < 2 * self._first:
            return (bound,)
        found = self._split.get(id(bound))
        if found is None or found[0] is not bound:
            found = self._split[id(bound)] = (bound, *_growing(bound, self._first))
            while len(self._split) > REMEMBERED_PROGRAMS:
                self._split.pop(next(iter(self._split)))
        return found[1:]

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
        device.wgpu.queue.submit([encoder.finish()])
        device.counters.submits += 1


def _growing(bound: Sequence[BoundDispatch], size: int) -> Iterator[Sequence[BoundDispatch]]:
    """Yield parts of a program, each `GROWTH` times as long as the last, and then the rest."""
    start = 0
    while len(bound) - start >= 2 * size:
        yield bound[start : start + size]
        start, size = start + size, GROWTH * size
    yield bound[start:]
