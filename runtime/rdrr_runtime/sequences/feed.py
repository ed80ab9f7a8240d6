"""The GPU feed: decode passes that run ahead of the readback of their ids.

Each pass leaves its tokens and the next positions where the next pass reads them, and appends the
token ids to a ring buffer. So the host writes nothing between tokens, and it can submit passes
before it has read the ids of earlier ones. A feed serves one sequence or several and does not know
which phases a pass consists of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
from rdrr_device.buffers import BufferSlice, Bytes
from rdrr_device.readback import Fetch

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.sampling.finite import check_ids
from rdrr_runtime.sequences.step import Step


@dataclass(frozen=True)
class Ring:
    """The layout of the ring buffer of ids that wait to be read back, u32 [steps, width].

    Attributes:
        steps: Number of steps that the ring holds.
        width: Ids per step.
    """

    steps: int
    width: int = 1

    def ranges(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the (start, size) of `count` steps from step `first` on.

        There are two ranges where the steps wrap around the end of the ring, otherwise one.
        """
        start = first % self.steps
        size = min(count, self.steps - start)
        return [(start, size)] if size == count else [(start, size), (0, count - size)]

    def slice(self, ring: BufferSlice, start: int, size: int) -> BufferSlice:
        """Return the ids of consecutive steps."""
        return ring.range(4 * self.width * start, 4 * self.width * size)


class TokenRecorder(Protocol):
    """A recorder of more than ids for each token on the GPU, such as log-probabilities."""

    def records(self, start: int, count: int) -> BufferSlice:
        """Return the records of consecutive steps of the ring."""

    def receive(self, ids: Sequence[int], data: Bytes) -> None:
        """Decode and keep the records of these ids."""


@dataclass(frozen=True)
class FeedRun:
    """The steps that a feed runs. A step is one pass and gives one token for each row.

    Attributes:
        rows: The input rows of the first step, one for each sequence.
        first_step: Writes the inputs of the first step, and may submit it; returns the number of
            steps that it submitted, 0 or 1.
        further_step: Returns the phases of every further step.
        ring: Layout of the ring in which the steps leave their ids.
        per_submission: Largest number of steps in one submission, where the executor records one
            at once. The first has one step, and each further one at most twice as many as the one
            before.
        submitted: Called with the number of further steps that have been submitted.
        check: Raises an error if an id is marked, see `rdrr_runtime.sampling.finite.check_ids`.
    """

    rows: Sequence[Row]
    first_step: Callable[[], int]
    further_step: Callable[[], Prepared]
    ring: Ring
    per_submission: int = 1
    submitted: Callable[[int], None] | None = None
    check: Callable[[npt.NDArray[np.uint32]], None] = check_ids


@dataclass
class _Copy:
    """A copy of ids from the ring to the host that has been started.

    Attributes:
        start: Number of the first step.
        count: Number of steps.
        fetch: The ranges of the ids, then those of the records if there are any, then the word that
            says whether a pass gave up, if the executor has one.
    """

    start: int
    count: int
    fetch: Fetch


class GpuFeed:
    """A feed of one sequence or several, see `rdrr_runtime.backend.Feed`.

    Args:
        executor: Runs the passes.
        step: The inputs of the next pass, shared by all feeds of the sequences.
        run: The steps to run.
        recorder: Records more than ids of the tokens; None to record nothing.
    """

    def __init__(
        self, executor: Executor, step: Step, run: FeedRun, recorder: TokenRecorder | None = None
    ) -> None:
        self._executor, self._step, self._run = executor, step, run
        self._recorder = recorder
        self._rows = tuple(run.rows)
        self._began = False
        self._next_size = 1
        self._copied = 0
        self._open: list[_Copy] = []
        self._fenced: deque[list[_Copy]] = deque()

    def submit(self, count: int) -> None:
        """Submit the passes for `count` further ids of each row, without waiting for them."""
        while count:
            count -= self._submit_some(count)
            if self._step.recorded - self._copied == self._run.ring.steps:
                self._copy()

    def fence(self) -> None:
        """Start the copy of the ids that were submitted since the last fence."""
        self._copy()
        self._fenced.append(self._open)
        self._open = []

    def collect(self) -> list[list[int]]:
        """Wait for the oldest fence and return the ids of each row.

        Raises:
            GenerationError: The logits of a row are not finite.
        """
        copies = [self._read(copy) for copy in self._fenced[0]]
        self._fenced.popleft()
        ids: list[list[int]] = np.concatenate(copies)[:, : len(self._rows)].T.tolist()
        self._rows = tuple(
            Row(new[-1], row.sequence, row.slot + len(new))
            for row, new in zip(self._rows, ids, strict=True)
        )
        if not self._fenced and self._copied == self._step.recorded:
            self._step.advance(self._rows)
        return ids

    def _submit_some(self, most: int) -> int:
        """Submit up to `most` steps and return how many were submitted."""
        step, steps = self._step, 0
        if not self._began:
            self._began = True
            steps = self._run.first_step()
            self._copied = step.recorded
        if not steps:
            room = self._run.ring.steps - (step.recorded - self._copied)
            steps = min(self._next_size, most, room)
            # Short at first, so that the GPU starts early. The host records a step of 8 sequences
            # in 0.4 of the time that an H200 runs it, so twice as many are recorded in time.
            further = self._run.further_step()
            most = self._run.per_submission * self._executor.at_once(further)
            self._next_size = min(2 * self._next_size, most)
            step.invalidate()
            self._executor.run(further, len(self._rows), steps)
            if self._run.submitted is not None:
                self._run.submitted(steps)
        step.recorded += steps
        return steps

    def _copy(self) -> None:
        start, count = self._copied, self._step.recorded - self._copied
        if not count:
            return
        self._open.append(_Copy(start, count, self._fetch(start, count)))
        self._copied += count

    def _fetch(self, start: int, count: int) -> Fetch:
        """Start copying the ids of some steps, see `_Copy.fetch`."""
        ring = self._run.ring
        ranges = ring.ranges(start, count)
        parts = [ring.slice(self._step.state.ring, at, size) for at, size in ranges]
        if self._recorder is not None:
            parts += [self._recorder.records(at, size) for at, size in ranges]
        gave_up = self._executor.gave_up
        return self._executor.device.fetch(*parts, *([] if gave_up is None else [gave_up]))

    def _read(self, copy: _Copy) -> npt.NDArray[np.uint32]:
        """Wait for a copy and return its ids, u32 [steps, width]."""
        parts = copy.fetch.collect()
        ranges = len(self._run.ring.ranges(copy.start, copy.count))
        expected = ranges * (1 if self._recorder is None else 2)
        if len(parts) > expected and parts[expected].view(np.uint32)[0]:
            self._repeat()
            parts = copy.fetch.collect()
        ids = np.concatenate(parts[:ranges]).view(np.uint32).reshape(copy.count, -1)
        self._run.check(ids[:, : len(self._rows)])
        if self._recorder is not None:
            self._recorder.receive(ids[:, 0].tolist(), np.concatenate(parts[ranges:expected]))
        return ids

    def _repeat(self) -> None:
        """Run the passes again that did not end, and copy anew all ids that were not read.

        A pass that gives up leaves the step as it was, and those after it do nothing. So the step
        still tells how many of the passes have ended.
        """
        executor, step = self._executor, self._step
        executor.recover()
        ended = int(executor.device.read(step.state.step, 4, 4).view(np.uint32)[0])
        if step.recorded > ended:
            again = self._run.further_step()
            executor.run(again, len(self._rows), step.recorded - ended)
        for copy in (*chain.from_iterable(self._fenced), *self._open):
            copy.fetch = self._fetch(copy.start, copy.count)
