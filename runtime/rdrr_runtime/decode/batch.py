"""Continuous batching: several prompts decoded together, each until its own end.

A batch has a fixed number of sequences. Prompts wait in a queue for a free sequence and release it
when they end, so that passes stay full as long as there is work. Each prompt gets the same ids as
if it were decoded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rdrr_runtime.backend import BatchBackend, Row
from rdrr_runtime.decode.base import Counts, until_stop
from rdrr_runtime.sampling.params import SamplingParams


@dataclass
class BatchSequence:
    """A prompt and the ids generated after it.

    Attributes:
        prompt: Token ids, at least one.
        left: Number of ids that may still be generated.
        new: Generated ids, including an end-of-text id.
        finish: Why it ended: `stop`, `length` or `context`; `running` before the end.
        sequence: Index of the batch's sequence that it occupies; -1 while it waits.
    """

    prompt: Sequence[int]
    left: int
    new: list[int] = field(default_factory=list)
    finish: str = "running"
    sequence: int = -1

    @property
    def row(self) -> Row:
        """The row to run next: the last id, whose successor is not known yet."""
        last = self.new[-1] if self.new else self.prompt[-1]
        return Row(last, self.sequence, len(self.prompt) + len(self.new) - 1)

    @property
    def prompt_rows(self) -> list[Row]:
        """The rows of the prompt before its last id; they only fill the cache."""
        ids = self.prompt[:-1]
        return [Row(one, self.sequence, slot) for slot, one in enumerate(ids)]

    def extend(self, ids: list[int], stop_ids: frozenset[int], max_tokens: int) -> None:
        """Append generated ids up to the end of the sequence, and note why it ended.

        Args:
            ids: Ids of the last steps; those after the end are dropped.
            stop_ids: Ids that end the sequence.
            max_tokens: Number of ids that the caller requested for the whole sequence.
        """
        delivered, ended = until_stop(ids[: self.left], stop_ids)
        self.new += delivered
        self.left -= len(delivered)
        if ended:
            self.finish = "stop"
        elif not self.left:
            self.finish = "length" if len(self.new) == max_tokens else "context"


Step = Callable[[Sequence[Row], int], list[list[int]]]
"""Runs one row of each sequence for a number of steps; returns that many new ids for each."""


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
    """Decode all prompts and return them with their new ids, in the order of `prompts`.

    Args:
        backend: Runs the rows of several sequences.
        prompts: Token ids of each prompt, from 1 to the backend's context.
        max_tokens: Largest number of new ids of each prompt.
        sampling: How tokens are chosen; each sequence is sampled from the same seed, by itself.
        interval: Steps between two readbacks.
        stop_ids: Ids that end a sequence.
        counts: Updated; a forward pass over the rows of all sequences counts once.
    """
    batch = [
        BatchSequence(prompt, min(max_tokens, backend.context - len(prompt) + 1))
        for prompt in prompts
    ]
    step: Step = backend.greedy if sampling.is_greedy else backend.sample
    waiting, free = list(batch), list(range(backend.sequences))
    running: list[BatchSequence] = []
    while waiting or running:
        starting = [waiting.pop(0) for _ in free[: len(waiting)]]
        for one in starting:
            one.sequence = free.pop(0)
            if not sampling.is_greedy:
                backend.begin(one.sequence, sampling, one.prompt)
        if rows := [row for one in starting for row in one.prompt_rows]:
            backend.fill(rows)
        running += starting
        # The shortest sequence bounds the steps, since no row may run beyond its context.
        new_ids = step([one.row for one in running], min(interval, *(one.left for one in running)))
        counts.readbacks += 1
        counts.forwards += len(new_ids[0])
        for one, ids in zip(running, new_ids, strict=True):
            one.extend(ids, stop_ids, max_tokens)
        free += [one.sequence for one in running if one.finish != "running"]
        running = [one for one in running if one.finish == "running"]
    return batch
