"""Several prompts continued together: which slot each has, and when each ends.

Prompts wait until a slot is free, take it, and leave it when their sequence ends, so the passes
stay full while there is work. Every sequence is the one that its prompt gives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rdrr_runtime.backend import BatchBackend, Row
from rdrr_runtime.decode.base import Counts, until_stop
from rdrr_runtime.sampling.params import SamplingParams


@dataclass
class BatchSequence:
    """A prompt and what came after it.

    Attributes:
        prompt: Token ids, at least one.
        left: New ids that may still come.
        new: New ids, an end-of-text included.
        finish: `stop`, `length` or `context`; `running` until then.
        sequence: Which sequence of the batch it is.
    """

    prompt: Sequence[int]
    left: int
    new: list[int] = field(default_factory=list)
    finish: str = "running"
    sequence: int = -1

    @property
    def row(self) -> Row:
        """The next row to run."""
        last = self.new[-1] if self.new else self.prompt[-1]
        return Row(last, self.sequence, len(self.prompt) + len(self.new) - 1)

    @property
    def filling(self) -> list[Row]:
        """All rows before that."""
        ids = self.prompt[:-1]
        return [Row(one, self.sequence, slot) for slot, one in enumerate(ids)]

    def take(self, ids: list[int], stop_ids: frozenset[int], most: int) -> None:
        """Add new ids, up to the end of the sequence, of which `most` were asked for."""
        delivered, ended = until_stop(ids[: self.left], stop_ids)
        self.new += delivered
        self.left -= len(delivered)
        if ended:
            self.finish = "stop"
        elif not self.left:
            self.finish = "length" if len(self.new) == most else "context"


Step = Callable[[Sequence[Row], int], list[list[int]]]
"""Runs the next rows of sequences and returns new ids of each, all as many."""


def run_batch(
    backend: BatchBackend,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: SamplingParams,
    interval: int,
    stop_ids: frozenset[int],
    counts: Counts,
) -> list[BatchSequence]:
    """Continue all prompts.

    Args:
        backend: Runs them.
        prompts: Token ids, each of at least one, and of no more than the backend's context.
        max_tokens: Most new ids of each.
        sampling: How tokens are chosen; each sequence samples by itself from the same seed.
        interval: Steps between two readbacks.
        stop_ids: Ids that end a sequence.
        counts: Filled: a forward is a pass over all rows.
    """
    every = [
        BatchSequence(prompt, min(max_tokens, backend.context - len(prompt) + 1))
        for prompt in prompts
    ]
    step: Step = backend.greedy if sampling.is_greedy else backend.sample
    waiting, free = list(every), list(range(backend.sequences))
    running: list[BatchSequence] = []
    while waiting or running:
        entering = [waiting.pop(0) for _ in free[: len(waiting)]]
        for one in entering:
            one.sequence = free.pop(0)
            if not sampling.is_greedy:
                backend.begin(one.sequence, sampling, one.prompt)
        if rows := [row for one in entering for row in one.filling]:
            backend.fill(rows)
        running += entering
        # No row may run beyond its context.
        found = step([one.row for one in running], min(interval, *(one.left for one in running)))
        counts.readbacks += 1
        counts.forwards += len(found[0])
        for one, ids in zip(running, found, strict=True):
            one.take(ids, stop_ids, max_tokens)
        free += [one.sequence for one in running if one.finish != "running"]
        running = [one for one in running if one.finish == "running"]
    return every
