"""How a program, a sequence of bound dispatches, reaches the queue.

`PassSubmitter` is how models run: one compute pass in one submission. A device takes any other
`Submitter` for the length of a block, see `Device.submitting`, so that benchmarks can measure other
ways around the same dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from rdrr_device.handle import DeviceHandle
from rdrr_device.pipelines import BoundDispatch, Recorder

REMEMBERED_PROGRAMS = 16
MANY_ROWS = 128
"""Token rows from which a program is so long that its beginning is submitted first."""

FIRST_DISPATCHES = 24
"""Dispatches that are submitted first of such a program, so that the GPU works while the host
records the others."""

GROWTH = 4
"""How many times as many are submitted next: recording a dispatch takes the host a fifth of what it
takes the GPU, so each part is recorded while the one before it runs."""


class Submitter(Protocol):
    """An object that runs programs on a device.

    Attributes:
        fresh_staging: Whether each readback gets a new mappable buffer instead of one used before.
    """

    fresh_staging: bool

    def run(self, bound: Sequence[BoundDispatch], rows: int, times: int = 1) -> None:
        """Run bound dispatches in order for `rows` token rows, `times` times over."""
        ...


class PassSubmitter:
    """A submitter that records a program into one compute pass and submits it at once.

    Args:
        device: The device.
        recorder: Recorder of dispatches.
        first: Dispatches of a program of `MANY_ROWS` that are submitted before the others, which
            follow in growing parts; 0 submits every program as a whole.
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
        """Return the parts of a program that are submitted, the same objects each time."""
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
            self._recorder.record(compute_pass, bound, rows)
            device.counters.dispatches += len(bound)
        compute_pass.end()
        device.wgpu.queue.submit([encoder.finish()])
        device.counters.submits += 1


def _growing(bound: Sequence[BoundDispatch], size: int) -> Iterator[Sequence[BoundDispatch]]:
    """Yield parts of a program, each `GROWTH` times as long as the one before, and the rest."""
    start = 0
    while len(bound) - start >= 2 * size:
        yield bound[start : start + size]
        start, size = start + size, GROWTH * size
    yield bound[start:]
