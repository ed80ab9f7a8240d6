"""Decoding of one sequence or several on the GPU, with the same step, sampler and feed.

The passes that run the rows are given from outside, see `passes`. A single sequence with recurrent
states also has copies of them, to which it can return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from rdrr_device.copies import copy_slices
from rdrr_device.device import Device

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.host_tables import HostTables
from rdrr_runtime.exec.image_inputs import ImageInputs
from rdrr_runtime.exec.prepared import PreparedPass
from rdrr_runtime.phases.cache.state_cache import StateCache
from rdrr_runtime.phases.cache.state_positions import StatePosition
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.faults import Faults
from rdrr_runtime.sequences.feed import FeedRun, GpuFeed
from rdrr_runtime.sequences.passes import Passes
from rdrr_runtime.sequences.sampler import GpuSampler
from rdrr_runtime.sequences.step import Step

F32 = npt.NDArray[np.float32]
PassPart = Callable[[PreparedPass], Prepared]
"""Selects which part of a pass to run: its body, up to the logits, or up to the token."""

PASSES_PER_SUBMISSION = 2
"""Decode passes per submission when running ahead of readback. Each submission costs the GPU about
16 us of idle time."""

MOST_PASSES_PER_SUBMISSION = 4
"""Likewise where all passes are submitted before the first readback."""


class GpuSequences:
    """One sequence or several on a GPU.

    Args:
        executor: Runs the passes.
        state: Buffers of the inputs of the next pass.
        passes: The passes that run the rows.
        vocabulary: Number of logits per row.
        new_sampler: Makes the sampler.
        position: Position of the recurrent states of a single sequence; None for a batch, whose
            sequences are never rewound.
        tables: Tables on the host whose rows each pass needs; None for none.
        images: Where features of images are written for each pass; None if the model sees none.
    """

    def __init__(
        self,
        executor: Executor,
        state: State,
        passes: Passes,
        vocabulary: int,
        new_sampler: Callable[[], GpuSampler],
        position: StatePosition | None = None,
        tables: HostTables | None = None,
        images: ImageInputs | None = None,
    ) -> None:
        self.position = position if position is not None else StatePosition()
        self.step = Step(executor.device, state, tables, images)
        self.faults = Faults(executor.device, state, passes.cache)
        self._executor, self._passes = executor, passes
        self.vocabulary, self._new_sampler = vocabulary, new_sampler

    @cached_property
    def sampler(self) -> GpuSampler:
        """The sampler, which is only allocated once a generation samples."""
        return self._new_sampler()

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a generation in a sequence, see `BatchBackend.begin`."""
        self.sampler.begin(options, seen, sequence=sequence)

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run one row of each sequence for `count` steps, feeding back the most probable tokens.

        Returns:
            For each row its `count` new ids, the last of which has not been run.
        """
        return self._decode(rows, count, sampled=False)

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run rows like `greedy`, feeding back sampled tokens."""
        return self._decode(rows, count, sampled=True)

    def _decode(self, rows: Sequence[Row], count: int, *, sampled: bool) -> list[list[int]]:
        """Run rows for `count` steps: all at once, or one by one if the host must know the ids."""
        new_ids: list[list[int]] = [[] for _ in rows]
        at_once = 1 if self.step.waits_for_ids else max(1, count)
        for _ in range(0, count, at_once):
            first = partial(self._write, rows)
            most = MOST_PASSES_PER_SUBMISSION
            feed = self.feed(rows, first, sampled=sampled, per_submission=most)
            new = submit_and_collect(feed, at_once)
            new_ids = [[*old, *more] for old, more in zip(new_ids, new, strict=True)]
            rows = [
                Row(ids[-1], row.sequence, row.slot + at_once)
                for row, ids in zip(rows, new, strict=True)
            ]
        return new_ids

    def logits(self, rows: Sequence[Row]) -> F32:
        """Run one row of each sequence and return the logits, f32 [rows, vocab]."""
        prepared = self._passes.decode(len(rows))
        self._write(rows)
        self._executor.run(prepared.to_logits, len(rows))
        return self.read_logits(prepared, len(rows))

    def feed(
        self,
        rows: Sequence[Row],
        first: Callable[[], int],
        *,
        sampled: bool = False,
        per_submission: int = 1,
    ) -> GpuFeed:
        """Return a feed that continues after rows.

        Args:
            rows: The input rows of the first step, one for each sequence.
            first: Writes the inputs of the first step, and may submit it; returns the number of
                steps that it submitted, 0 or 1.
            sampled: Whether tokens are sampled as `begin` requested; otherwise the most probable
                tokens are taken.
            per_submission: Largest number of steps in one submission.
        """
        count, to_token = len(rows), self.to_token(sampled)
        sampler = self.sampler if sampled else None
        run = FeedRun(
            rows,
            first,
            lambda: to_token(self._passes.decode(count)),
            self._passes.ring(count),
            per_submission,
            self.position.advance,
            self.faults.check_ids,
        )
        recorder = sampler if sampler is not None and sampler.has_records else None
        return GpuFeed(self._executor, self.step, run, recorder)

    def to_token(self, sampled: bool) -> PassPart:
        """Return the function that selects a pass up to its sampled or most probable token."""
        return self.sampler.to_token if sampled else _to_most_probable

    def run(
        self, ids: Sequence[int], base: int, part: PassPart, sequence: int = 0
    ) -> PreparedPass | None:
        """Run ids of one sequence in as many passes as they need.

        Args:
            ids: Token ids, at least one.
            base: Slot of the first id.
            part: Selects the part of the last pass to submit; of earlier passes only the body runs.
            sequence: Index of the sequence.

        Returns:
            The last pass. None if no pass serves so few ids of one sequence by itself; then nothing
            has run.
        """
        passes = list(self._divided(ids))
        if not passes:
            return None
        self.position.begin(base)
        resumes = len(ids) == 1 and self.step.resume((Row(ids[0], sequence, base),))
        start = 0
        for prepared, some in passes:
            if not resumes:
                self.step.write(some, base + start, sequence=sequence)
            start += len(some)
            is_last = start == len(ids)
            self._executor.run(part(prepared) if is_last else prepared.body, len(some))
        self.position.advance(len(ids))
        if len(ids) > 1:
            self.position.keep()
        return prepared

    def _divided(self, ids: Sequence[int]) -> Iterator[tuple[PreparedPass, Sequence[int]]]:
        """Yield the passes that run consecutive ids of a sequence, and the ids of each."""
        parts = self.step.parts(ids)
        passes = self._passes.consecutive(*map(len, parts))
        for part in parts if passes else ():
            start = 0
            while start < len(part):
                prepared = passes.pop(0)
                yield prepared, part[start : start + prepared.rows]
                start += prepared.rows

    def read_logits(self, prepared: PreparedPass, rows: int) -> F32:
        """Read back the logits of a pass, f32 [rows, vocab].

        Raises:
            GenerationError: Keys or values are beyond the range of the cache.
        """
        data = self._executor.device.read(prepared.logits, 0, 4 * rows * self.vocabulary)
        return self.faults.check_rows(data.view(np.float32).reshape(rows, self.vocabulary))

    def _write(self, rows: Sequence[Row]) -> int:
        """Write the inputs of rows unless the GPU has already put them there; return 0 steps."""
        if not self.step.resume(rows):
            self.step.write_rows(rows)
        return 0


def submit_and_collect(feed: GpuFeed, count: int) -> list[list[int]]:
    """Block until `count` ids of each row are available and return them."""
    feed.submit(count)
    feed.fence()
    return feed.collect()


def _to_most_probable(prepared: PreparedPass) -> Prepared:
    return prepared.to_token


class GpuStateCopies:
    """The states of a sequence with their copies, see `state_positions.StateCopies`.

    Args:
        device: The device.
        states: The states of all sequences and the memory of their copies.
        sequence: Index of the sequence.
    """

    def __init__(self, device: Device, states: StateCache, sequence: int = 0) -> None:
        self._device, self._states, self._sequence = device, states, sequence

    def save(self, index: int) -> None:
        """Copy the states into the copy `index`, behind all passes submitted so far."""
        self._copy(self._states, self._states.copies[index])

    def restore(self, index: int) -> None:
        """Copy the copy `index` into the states."""
        self._copy(self._states.copies[index], self._states)

    def _copy(self, source: StateCache, target: StateCache) -> None:
        slices = source.of_sequence(self._sequence), target.of_sequence(self._sequence)
        copy_slices(self._device, zip(*slices, strict=True), label="copying states")
