"""Continuous batching: several prompts decoded together, each until its own end.

A batch has a fixed number of sequences. Prompts wait in a queue for a free sequence and release it
when they end, so that passes stay full as long as there is work. Each prompt gets the same ids as
if it were decoded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rdrr_runtime.backend import BatchBackend, Feed, Row
from rdrr_runtime.decode.base import Counts, until_stop
from rdrr_runtime.sampling.params import SamplingParams

AHEAD = 2
"""Steps to submit before the ids of earlier ones are read back. A step of 8 sequences takes an H200
1.0 ms; reading ids back and recording the next two steps takes its host about as long."""


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
        return [Row(token, self.sequence, slot) for slot, token in enumerate(ids)]

    def extend(self, ids: list[int], stop_ids: frozenset[int], max_tokens: int) -> None:
        """Append generated ids up to the end of the sequence, and note why it ended.

        Args:
            ids: Ids of the last steps, at most `left`; those after a stop id are dropped.
            stop_ids: Ids that end the sequence.
            max_tokens: Number of ids that the caller requested for the whole sequence.
        """
        delivered, ended = until_stop(ids, stop_ids)
        self.new += delivered
        self.left -= len(delivered)
        if ended:
            self.finish = "stop"
        elif not self.left:
            self.finish = "length" if len(self.new) == max_tokens else "context"


@dataclass(frozen=True)
class _Run:
    """What holds for all sequences of a batch, see `run_batch`."""

    backend: BatchBackend
    sampled: bool
    interval: int
    stop_ids: frozenset[int]
    max_tokens: int
    counts: Counts

    def until_an_end(self, running: Sequence[BatchSequence]) -> None:
        """Decode one token of each sequence at a time, until at least one of them ends.

        While ids are read back, the device runs the next `AHEAD` steps. Those after an end are
        wasted for the sequence that has ended; the others take their ids too.
        """
        feed = self.backend.feed_rows([sequence.row for sequence in running], sampled=self.sampled)
        # The shortest sequence bounds the steps, since no row may run beyond its context.
        most = min(sequence.left for sequence in running)
        if feed is None:
            self._extend(running, self._step(running, min(self.interval, most)))
            return
        submitted = done = 0
        while all(sequence.finish == "running" for sequence in running):
            done = min(done + self.interval, most)
            submitted = _submit(feed, submitted, done)
            feed.fence()
            submitted = _submit(feed, submitted, min(done + min(AHEAD, self.interval), most))
            self._extend(running, feed.collect())
        if submitted > done and any(sequence.finish == "running" for sequence in running):
            feed.fence()
            self._extend(running, feed.collect())
        self.counts.forwards += submitted

    def _extend(self, running: Sequence[BatchSequence], new_ids: list[list[int]]) -> None:
        """Append new ids to the sequences that have not ended."""
        self.counts.readbacks += 1
        for sequence, ids in zip(running, new_ids, strict=True):
            if sequence.finish == "running":
                sequence.extend(ids, self.stop_ids, self.max_tokens)

    def _step(self, running: Sequence[BatchSequence], count: int) -> list[list[int]]:
        """Return `count` new ids of each sequence, in the order of `running`."""
        step = self.backend.sample if self.sampled else self.backend.greedy
        self.counts.forwards += count
        return step([sequence.row for sequence in running], count)


def _submit(feed: Feed, submitted: int, goal: int) -> int:
    """Submit the steps that are missing to `goal` and return it."""
    if goal > submitted:
        feed.submit(goal - submitted)
    return goal


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
    run = _Run(backend, not sampling.is_greedy, interval, stop_ids, max_tokens, counts)
    waiting, free = list(batch), list(range(backend.sequences))
    running: list[BatchSequence] = []
    while waiting or running:
        starting = [waiting.pop(0) for _ in free[: len(waiting)]]
        for sequence in starting:
            sequence.sequence = free.pop(0)
            if not sampling.is_greedy:
                backend.begin(sequence.sequence, sampling, sequence.prompt)
        if rows := [row for sequence in starting for row in sequence.prompt_rows]:
            backend.fill(rows)
        running += starting
        run.until_an_end(running)
        free += [sequence.sequence for sequence in running if sequence.finish != "running"]
        running = [sequence for sequence in running if sequence.finish == "running"]
    return batch
