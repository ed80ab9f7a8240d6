"""Passes that hand their tokens to each other on the GPU, and how the ids come to the host.

A pass leaves its tokens and the next positions where the next pass reads them, and the ids in a
ring. So the host writes nothing between tokens, and it can submit passes before it knows what came
of those before. It is the same for one sequence and for several; what is run in a pass is not this
module's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice
from rdrr_device.readback import Bytes, Fetch

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.sequences.step import Step


@dataclass(frozen=True)
class Ring:
    """The layout of the ids that wait to be read back, u32[steps, width].

    Attributes:
        steps: Steps that it holds.
        width: Ids of a step.
    """

    steps: int
    width: int = 1

    def runs(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return (start, size) of `count` steps from the `first` on: one run, or two at the end."""
        start = first % self.steps
        size = min(count, self.steps - start)
        return [(start, size)] if size == count else [(start, size), (0, count - size)]

    def slice(self, ring: BufferSlice, start: int, size: int) -> BufferSlice:
        """Return the ids of consecutive steps."""
        return ring.range(4 * self.width * start, 4 * self.width * size)


class TokenRecorder(Protocol):
    """What keeps a record of each token on the GPU besides its id."""

    def records(self, start: int, count: int) -> BufferSlice:
        """Return the records of consecutive steps of the ring."""
        ...

    def receive(self, ids: Sequence[int], data: Bytes) -> None:
        """Take the bytes of the records of these ids."""
        ...


@dataclass(frozen=True)
class FeedRun:
    """What a feed runs.

    Attributes:
        rows: The rows whose tokens the first step gives, one of each sequence.
        first: Prepares the first step, and returns how many steps it has submitted, 0 or 1.
        again: Returns the phases of a further step.
        ring: Where the steps leave their ids.
        together: Most steps of a submission.
    """

    rows: Sequence[Row]
    first: Callable[[], int]
    again: Callable[[], Prepared]
    ring: Ring
    together: int = 1


@dataclass
class _Copy:
    """Ids on their way to the host, from one part of the ring or from its end and beginning."""

    count: int
    runs: int
    fetch: Fetch


class GpuFeed:
    """One run of passes over one sequence or several, see `rdrr_runtime.backend.Feed`.

    Args:
        executor: What runs the passes.
        step: The step of the sequences, which all their feeds share.
        run: What is run.
        recorder: Keeps records of the tokens; None where there are none.
    """

    def __init__(
        self, executor: Executor, step: Step, run: FeedRun, recorder: TokenRecorder | None = None
    ) -> None:
        self._executor, self._step, self._run = executor, step, run
        self._recorder = recorder
        self._rows = tuple(run.rows)
        self._began = False
        self._copied = 0
        self._open: list[_Copy] = []
        self._fenced: deque[list[_Copy]] = deque()

    def submit(self, count: int) -> None:
        """Submit the passes that give `count` further ids of each row; it does not wait."""
        while count:
            count -= self._submit_some(count)
            if self._step.recorded - self._copied == self._run.ring.steps:
                self._copy()

    def fence(self) -> None:
        """Start to copy the ids that were submitted since the last fence."""
        self._copy()
        self._fenced.append(self._open)
        self._open = []

    def collect(self) -> list[list[int]]:
        """Wait for the ids of the oldest fence, and return those of each row."""
        copies = [self._read(one) for one in self._fenced.popleft()]
        ids: list[list[int]] = np.concatenate(copies)[:, : len(self._rows)].T.tolist()
        self._rows = tuple(
            Row(new[-1], row.sequence, row.slot + len(new))
            for row, new in zip(self._rows, ids, strict=True)
        )
        if not self._fenced and self._copied == self._step.recorded:
            self._step.advance(self._rows)
        return ids

    def _submit_some(self, most: int) -> int:
        """Submit some steps, at most `most`, and return how many they were."""
        step, steps = self._step, 0
        if not self._began:
            self._began = True
            steps = self._run.first()
            self._copied = step.recorded
        if not steps:
            room = self._run.ring.steps - (step.recorded - self._copied)
            steps = min(self._run.together, most, room)
            step.invalidate()
            self._executor.run(self._run.again(), len(self._rows), steps)
        step.recorded += steps
        return steps

    def _copy(self) -> None:
        start, count = self._copied, self._step.recorded - self._copied
        if not count:
            return
        ring = self._run.ring
        runs = ring.runs(start, count)
        parts = [ring.slice(self._step.state.ring, at, size) for at, size in runs]
        if self._recorder is not None:
            parts += [self._recorder.records(at, size) for at, size in runs]
        self._open.append(_Copy(count, len(runs), self._executor.device.fetch(*parts)))
        self._copied += count

    def _read(self, one: _Copy) -> npt.NDArray[np.uint32]:
        """Return the ids [steps, width] of a copy."""
        parts = one.fetch.collect()
        ids = np.concatenate(parts[: one.runs]).view(np.uint32).reshape(one.count, -1)
        if self._recorder is not None:
            self._recorder.receive(ids[:, 0].tolist(), np.concatenate(parts[one.runs :]))
        return ids
