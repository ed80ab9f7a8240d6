"""Sequences that are decoded on the GPU, one or several, by the same step, sampler and feed.

Which passes run their rows is given, see `passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from rdrr_runtime.backend import Row
from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.exec.program import PreparedPass
from rdrr_runtime.phases.state import State
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sequences.feed import FeedRun, GpuFeed
from rdrr_runtime.sequences.passes import Passes
from rdrr_runtime.sequences.sampler import GpuSampler
from rdrr_runtime.sequences.step import Step

F32 = npt.NDArray[np.float32]
PassPart = Callable[[PreparedPass], Prepared]
"""Selects which part of a pass to run."""

PASSES_PER_SUBMISSION = 2
"""Decode passes per submission when running ahead of readback: each submission costs idle time."""


class GpuSequences:
    """One sequence or several on a GPU.

    Args:
        executor: What runs the passes.
        state: The step.
        passes: What runs their rows.
        vocabulary: Logits of a row.
        new_sampler: Makes the sampler.
    """

    def __init__(
        self,
        executor: Executor,
        state: State,
        passes: Passes,
        vocabulary: int,
        new_sampler: Callable[[], GpuSampler],
    ) -> None:
        self.step = Step(executor.device, state)
        self._executor, self._passes = executor, passes
        self.vocabulary, self._new_sampler = vocabulary, new_sampler

    @cached_property
    def sampler(self) -> GpuSampler:
        """The sampler; nothing of it is allocated before the first generation that samples."""
        return self._new_sampler()

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a generation in a sequence, see `BatchBackend.begin`."""
        self.sampler.begin(options, seen, sequence=sequence)

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run a row of each sequence, then feed back the most probable tokens; `count` steps.

        Returns:
            For each row its `count` new ids, of which the last has not been run.
        """
        return submit_and_collect(
            self.feed(rows, partial(self._write, rows), per_submission=PASSES_PER_SUBMISSION), count
        )

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Do as `greedy` with sampled tokens."""
        first = partial(self._write, rows)
        return submit_and_collect(
            self.feed(rows, first, sampled=True, per_submission=PASSES_PER_SUBMISSION), count
        )

    def logits(self, rows: Sequence[Row]) -> F32:
        """Run a row of each sequence; logits of each, float32 [rows, vocab]."""
        which = self._passes.decode(len(rows))
        self._write(rows)
        self._executor.run(which.to_logits, len(rows))
        return self.read_logits(which, len(rows))

    def feed(
        self,
        rows: Sequence[Row],
        first: Callable[[], int],
        *,
        sampled: bool = False,
        per_submission: int = 1,
    ) -> GpuFeed:
        """Return a feed that goes on from rows.

        Args:
            rows: Whose tokens its first step gives, one row of each sequence.
            first: Prepares that step, and returns how many steps it has submitted, 0 or 1.
            sampled: Tokens are sampled as `begin` said, else the most probable ones.
            per_submission: Most steps of a submission.
        """
        count, to_token = len(rows), self.to_token(sampled)
        sampler = self.sampler if sampled else None
        run = FeedRun(
            rows,
            first,
            lambda: to_token(self._passes.decode(count)),
            self._passes.ring(count),
            per_submission,
        )
        recorder = sampler if sampler is not None and sampler.has_records else None
        return GpuFeed(self._executor, self.step, run, recorder)

    def to_token(self, sampled: bool) -> PassPart:
        """Return what selects a pass up to the token, sampled or most probable."""
        return self.sampler.to_token if sampled else _to_most_probable

    def run(
        self, ids: Sequence[int], base: int, part: PassPart, sequence: int = 0
    ) -> PreparedPass | None:
        """Run ids of one sequence in as many passes as they need.

        Args:
            ids: Token ids, at least one.
            base: Slot of the first.
            part: What is submitted of the last pass; of those before it the body.
            sequence: Whose ids.

        Returns:
            The pass; None, and nothing has run, where the sequence has none of its own.
        """
        which = self._passes.consecutive(len(ids), sequence)
        if which is None:
            return None
        resumes = len(ids) == 1 and self.step.resume((Row(ids[0], sequence, base),))
        for start in range(0, len(ids), which.rows):
            some = ids[start : start + which.rows]
            if not resumes:
                self.step.write(some, base + start, sequence=sequence)
            is_last = start + len(some) == len(ids)
            self._executor.run(part(which) if is_last else which.body, len(some))
        return which

    def read_logits(self, which: PreparedPass, rows: int) -> F32:
        """Return the logits that a pass has left, float32 [rows, vocab]."""
        data = self._executor.device.read(which.logits, 0, 4 * rows * self.vocabulary)
        return data.view(np.float32).reshape(rows, self.vocabulary)

    def _write(self, rows: Sequence[Row]) -> int:
        """Write the step of rows, unless the GPU has put them there; submits nothing."""
        if not self.step.resume(rows):
            self.step.write_rows(rows)
        return 0


def submit_and_collect(feed: GpuFeed, count: int) -> list[list[int]]:
    """Block until `count` ids of each row are available and return them."""
    feed.submit(count)
    feed.fence()
    return feed.collect()


def _to_most_probable(which: PreparedPass) -> Prepared:
    return which.to_token
