"""Passes that hand their tokens to each other on the GPU, and how the ids come to the host.

A pass leaves its token and the next position where the next pass reads them, and the id in a ring.
So the host writes nothing between tokens, and it can submit passes before it knows what came of
those before. What is run in a pass is not this module's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rdrr_device.buffers import BufferSlice
from rdrr_device.device import Device
from rdrr_device.pipelines import BoundDispatch
from rdrr_device.readback import Bytes, Fetch

from rdrr_runtime.exec.program import RING
from rdrr_runtime.phases.context import State

Bound = tuple[BoundDispatch, ...]
Records = Callable[[int, int], BufferSlice]
"""The part of the records that belongs to a first place of the ring and a count."""


class Place:
    """Where the GPU stands by itself, without the host's writing.

    Attributes:
        written: Ids in the ring since the host last wrote the step.
    """

    def __init__(self) -> None:
        self.written = 0
        self._next: tuple[int, int] | None = None

    def lose(self) -> None:
        """Something else has run, or ids are on their way that the host does not know."""
        self._next = None

    def reach(self, token_id: int, base: int) -> None:
        """The GPU has put this token and its slot where the next pass reads them."""
        self._next = (token_id, base)

    def take(self, ids: Sequence[int], base: int) -> bool:
        """Whether a pass over these needs no writing; the place is lost in any case."""
        resumes = len(ids) == 1 and self._next == (ids[0], base)
        self.lose()
        if not resumes:
            self.written = 0
        return resumes


@dataclass
class _Copy:
    """Ids on their way to the host, from one place of the ring or from its end and beginning."""

    count: int
    runs: int
    fetch: Fetch


class GpuFeed:
    """One run of passes, see `rdrr_runtime.backend.Feed`.

    Args:
        device: Where.
        state: Holds the ring.
        place: Of the GPU; shared by all feeds of a backend.
        first: Runs the ids that the feed begins with, up to the first token.
        again: The launches of every further token.
        end: Slots of the cache that are filled after `first`.
        together: Passes of a submission, at most.
        records: Where records of the tokens are, if they are wanted.
        told: Is given the records' bytes and their ids.
    """

    def __init__(
        self,
        device: Device,
        state: State,
        place: Place,
        *,
        first: Callable[[], object],
        again: Callable[[], Bound],
        end: int,
        together: int = 1,
        records: Records | None = None,
        told: Callable[[Sequence[int], Bytes], None] | None = None,
    ) -> None:
        self._device, self._state, self._place = device, state, place
        self._first: Callable[[], object] | None = first
        self._again = again
        self._end = end
        self._together = together
        self._records, self._told = records, told
        self._copied = 0
        self._open: list[_Copy] = []
        self._cuts: deque[list[_Copy]] = deque()

    def issue(self, count: int) -> None:
        """Submit what gives so many further ids."""
        while count:
            count -= self._submit(count)
            if self._place.written - self._copied == RING:
                self._copy()

    def cut(self) -> None:
        """Start to copy the ids that were issued since the last cut."""
        self._copy()
        self._cuts.append(self._open)
        self._open = []

    def take(self) -> list[int]:
        """Wait for the ids of the oldest cut."""
        ids = [token_id for one in self._cuts.popleft() for token_id in self._read(one)]
        self._end += len(ids)
        if not self._cuts and self._copied == self._place.written:
            self._place.reach(ids[-1], self._end - 1)
        return ids

    def _submit(self, most: int) -> int:
        """Submit some passes, at most so many; how many they were."""
        place, passes = self._place, 1
        if self._first is not None:
            self._first()
            self._first = None
            self._copied = place.written
        else:
            room = RING - (place.written - self._copied)
            passes = min(self._together, most, room)
            place.lose()
            self._device.submit(self._again(), 1, passes)
        place.written += passes
        return passes

    def _copy(self) -> None:
        start, count = self._copied, self._place.written - self._copied
        if not count:
            return
        runs = _ring_runs(start, count)
        parts = [self._state.ring.range(4 * at, 4 * size) for at, size in runs]
        if self._records is not None:
            parts += [self._records(at, size) for at, size in runs]
        self._open.append(_Copy(count, len(runs), self._device.fetch(*parts)))
        self._copied += count

    def _read(self, one: _Copy) -> list[int]:
        parts = one.fetch.take()
        found: list[int] = np.concatenate(parts[: one.runs]).view(np.uint32).tolist()
        if self._told is not None and one.runs < len(parts):
            self._told(found, np.concatenate(parts[one.runs :]))
        return found


def _ring_runs(first: int, count: int) -> list[tuple[int, int]]:
    """(start, size) of `count` ids from the `first` on: one run, or two around the ring's end."""
    start = first % RING
    size = min(count, RING - start)
    return [(start, size)] if size == count else [(start, size), (0, count - size)]
