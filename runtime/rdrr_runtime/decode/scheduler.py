"""Continuous batching: texts join and leave between steps, and prompts come in parts.

A step first gives free sequences to the texts that have waited longest, then runs some rows of
prompts that are not yet read, and then decodes a few tokens of every text whose prompt is. So a
long prompt delays the others by its part of a step only. A text gets the free sequence whose cache
holds the longest beginning of its prompt. If another text that runs holds a longer one, that is
copied, and if it is about to, the text waits for it; the rest of the prompt runs. Each text gets
the ids that it would get alone. `Scheduler.run` serves prompts that are all known at the beginning.

Decoding goes on in rounds of the same rows, in which the device is always some passes ahead of the
host. A text that ends or is removed leaves its sequence at once, but its row stays until the round
ends: another round would begin with a device that waits for the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rdrr_runtime.backend import BatchBackend, Feed, Row
from rdrr_runtime.decode.base import Counts, until_stop
from rdrr_runtime.sampling.params import SamplingParams


@dataclass(frozen=True)
class Pace:
    """How much a step does, which weighs the first token of a text against the next of the others.

    Attributes:
        prompt_rows: Most rows of prompts in a step; None for all.
        interval: Tokens of each text in a step, which are read back together.
        ahead: Passes that are submitted before the ids of a step are read back, at most `interval`:
            the device goes on while the host turns ids into text and sends it.
        shared_rows: Fewest rows that are copied from another text; fewer run sooner than that.
    """

    prompt_rows: int | None = None
    interval: int = 8
    ahead: int = 2
    shared_rows: int = 64


SERVER_PACE = Pace(prompt_rows=512, interval=4, ahead=4)
"""For texts that come at any time and that people read as they grow."""


@dataclass(eq=False)
class ScheduledText:
    """A prompt and the ids generated after it.

    Attributes:
        prompt: Token ids, at least one.
        max_tokens: Most new ids.
        sampling: How the next token is chosen.
        stop_ids: Ids that end the text.
        ids: New ids, including one that ends the text.
        finish: Why it ended: `stop`, `length` or `context`; `running` before the end.
        filled: Rows of the prompt that have run; the last one runs when the first token is decoded.
        reused: How many of these another text has run.
        sequence: Index of the batch's sequence that it occupies; -1 while it waits.
        border: Rows of the prompt that others have in common with it. A part of the prompt ends
            there, since states can only be copied where a part ends.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    stop_ids: frozenset[int]
    ids: list[int] = field(default_factory=list)
    finish: str = "running"
    filled: int = 0
    reused: int = 0
    sequence: int = -1
    border: int = 0

    @property
    def is_read(self) -> bool:
        """Whether all rows of the prompt but the last have run."""
        return self.filled >= len(self.prompt) - 1

    @property
    def row(self) -> Row:
        """The row to run next: the last id, whose successor is not known yet."""
        last = self.ids[-1] if self.ids else self.prompt[-1]
        return Row(last, self.sequence, len(self.prompt) + len(self.ids) - 1)

    @property
    def cached(self) -> list[int]:
        """The ids whose rows have certainly run: the last one of a text has not."""
        return [*self.prompt, *self.ids][:-1] if self.is_read else [*self.prompt[: self.filled]]

    def take_rows(self, most: int | None, backend: BatchBackend) -> list[Row]:
        """Return the next rows of the prompt, which are about to run on a backend."""
        begin, end = self.filled, len(self.prompt) - 1
        end = self.border if begin < self.border < end else end
        end = end if most is None else min(begin + most, end)
        end = backend.border(self.prompt, begin, end) if end > begin else end
        self.filled = end
        return [Row(self.prompt[slot], self.sequence, slot) for slot in range(begin, end)]

    def left(self, context: int) -> int:
        """Return how many ids may still follow in a context of `context` slots."""
        return min(self.max_tokens, context - len(self.prompt) + 1) - len(self.ids)

    def extend(self, ids: Sequence[int], context: int) -> list[int]:
        """Append ids up to the end of the text, note why it ended, and return those appended."""
        delivered, ended = until_stop(list(ids[: self.left(context)]), self.stop_ids)
        self.ids += delivered
        if ended:
            self.finish = "stop"
        elif not self.left(context):
            self.finish = "length" if len(self.ids) == self.max_tokens else "context"
        return delivered


class Delivered(NamedTuple):
    """New ids of a text.

    Attributes:
        text: The text.
        ids: Its next ids.
        finish: Why it ended with these ids; `running` if more follow.
    """

    text: ScheduledText
    ids: list[int]
    finish: str


class Scheduler:
    """Runs any number of texts on a batch of sequences.

    Args:
        backend: Runs the rows.
        pace: How much a step does.
        counts: Updated; a forward pass over the rows of all sequences counts once.
    """

    def __init__(
        self, backend: BatchBackend, pace: Pace = SERVER_PACE, counts: Counts | None = None
    ) -> None:
        self._backend, self._pace, self._counts = backend, pace, counts or Counts()
        self._waiting: deque[ScheduledText] = deque()
        self._running: list[ScheduledText] = []
        self._free = list(range(backend.sequences))
        self._held: list[list[int]] = [[] for _ in self._free]  # ids that free sequences hold
        self._sampling: set[int] = set()  # sequences whose sampler has begun
        self._round: _Round | None = None

    @property
    def waiting(self) -> int:
        """Number of texts that wait for a sequence."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of texts that have a sequence."""
        return len(self._running)

    def renewed(self) -> Scheduler:
        """Return a scheduler without texts, on the same sequences."""
        return Scheduler(self._backend, self._pace, self._counts)

    def add(self, text: ScheduledText) -> None:
        """Let a text wait for its turn."""
        self._waiting.append(text)

    def remove(self, text: ScheduledText) -> None:
        """End a text, whose sequence another one gets."""
        if text in self._waiting:
            self._waiting.remove(text)
        elif text in self._running:
            self._release(text)

    def run(self, texts: Sequence[ScheduledText]) -> None:
        """Run texts until each has ended."""
        self._waiting += texts
        while self._waiting or self._running:
            self.step()

    def step(self) -> list[Delivered]:
        """Run a part of the prompts and decode some tokens; return the new ids of each text."""
        self._admit()
        delivered = self._read_prompts()
        if self._round is not None and not self._round.serves(self._running):
            delivered += self._end_round()
        ready = [text for text in self._running if text.is_read]
        if self._round is None and ready:
            self._round = self._begin_round(ready)
            if delivered:  # these ids need not wait for those of the new round
                self._round.run_ahead()
                return delivered
        if self._round is not None:
            delivered += self._deliver(self._round.run())
        return delivered

    def _admit(self) -> None:
        while self._waiting and self._free:
            text = self._waiting.popleft()
            reusable = {free: self._reusable(free, text.prompt) for free in self._free}
            # Of several that hold as much the one that has been free longest: it is needed least.
            text.sequence = max(reusable, key=reusable.__getitem__)
            text.filled = text.reused = reusable[text.sequence]
            self._free.remove(text.sequence)
            others = (*self._held, *(other.prompt for other in self._running))
            border = max(_shared(ids, text.prompt) for ids in others)
            text.border = border if border >= text.filled + self._pace.shared_rows else 0
            self._running.append(text)

    def _reusable(self, sequence: int, prompt: Sequence[int]) -> int:
        """Return how many rows of a prompt need not run in a free sequence."""
        return self._backend.resumable(sequence, _shared(self._held[sequence], prompt))

    def _read_prompts(self) -> list[Delivered]:
        """Run rows of prompts, which ends the round: its passes read the rows that each wrote."""
        most, rows = self._pace.prompt_rows, list[Row]()
        # All copies come first, since the rows that are taken here have not run before the end.
        reading = [
            text
            for place, text in enumerate(self._running)
            if not text.is_read and not self._waits_for(text, self._running[:place])
        ]
        for text in reading:
            left = None if most is None else max(most - len(rows), 0)
            rows += text.take_rows(left, self._backend)
        if not rows:
            return []
        # The device runs these rows while the host turns the ids of the round into text.
        if self._round is not None:
            self._round.fence_rest()
        self._backend.fill(rows)
        return self._end_round()

    def _waits_for(self, text: ScheduledText, earlier: Sequence[ScheduledText]) -> bool:
        """Return whether an earlier text is about to run rows that a text can copy.

        If none is, copy those that one has run.
        """
        resumable, least = self._backend.resumable, self._pace.shared_rows
        ready = {
            other: resumable(other.sequence, _shared(other.cached, text.prompt))
            for other in earlier
        }
        best = max(earlier, key=lambda other: ready[other], default=text)
        most = max(ready.get(best, 0), text.filled)
        for other in earlier:
            shared = _shared(other.prompt, text.prompt)
            resumes = resumable(other.sequence, other.filled) == other.filled
            if not other.is_read and resumes and shared >= most + least:
                other.border = shared if other.border <= other.filled else other.border
                return True
        if most >= text.filled + least:
            self._backend.copy(best.sequence, text.sequence, most)
            text.reused += most - text.filled
            text.filled = most
        return False

    def _begin_round(self, ready: list[ScheduledText]) -> _Round:
        sampled = any(not text.sampling.is_greedy for text in ready)
        for text in ready if sampled else ():
            if text.sequence not in self._sampling:
                seen = [*text.prompt, *text.ids]
                self._backend.begin(text.sequence, text.sampling, seen)
                self._sampling.add(text.sequence)
        return _Round(self._backend, ready, sampled, self._pace, self._counts)

    def _deliver(self, ids: list[list[int]]) -> list[Delivered]:
        """Return new ids of the round, and release the sequences of the texts that they end."""
        assert self._round is not None
        context, delivered = self._backend.context, list[Delivered]()
        for text, new in zip(self._round.texts, ids, strict=True):
            if new and text in self._running:
                delivered.append(Delivered(text, text.extend(new, context), text.finish))
                if text.finish != "running":
                    self._release(text)
        return delivered

    def _end_round(self) -> list[Delivered]:
        """Read the ids of passes that are ahead: the sampler and the caches have gone on, too."""
        if self._round is None:
            return []
        delivered = self._deliver(self._round.rest())
        self._round = None
        return delivered

    def _release(self, text: ScheduledText) -> None:
        self._running.remove(text)
        self._sampling.discard(text.sequence)
        self._free.append(text.sequence)
        self._held[text.sequence] = text.cached


def _shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Return how many rows of a prompt need not run; the last one must, for its successor."""
    limit = min(len(held), len(prompt) - 1)
    if list(held[:limit]) == list(prompt[:limit]):
        return limit
    return next(at for at in range(limit) if held[at] != prompt[at])


class _Round:
    """Decoding of the same texts, with passes ahead of the readback.

    Args:
        backend: Runs the rows.
        texts: The texts, none of which has ended.
        sampled: Whether tokens are sampled.
        pace: How many passes run at a time.
        counts: Updated.
    """

    def __init__(
        self,
        backend: BatchBackend,
        texts: list[ScheduledText],
        sampled: bool,
        pace: Pace,
        counts: Counts,
    ) -> None:
        self.texts, self._pace, self._counts = texts, pace, counts
        self._step = backend.sample if sampled else backend.greedy
        self._feed: Feed | None = backend.feed_rows([text.row for text in texts], sampled=sampled)
        # A row may run beyond the end of its text, but not beyond its context.
        room = min(backend.context - text.row.slot for text in texts)
        self._left = min(room, max(text.left(backend.context) for text in texts))
        self._ahead, self._has_rest = 0, False

    def serves(self, running: Sequence[ScheduledText]) -> bool:
        """Return whether the round may go on while these texts have the sequences.

        It may not once another text runs, which joins the next round, or has a sequence that this
        one still writes to. Where half of the texts have ended, a pass of fewer rows is faster.
        """
        joined = set(self.texts)
        left = sum(text in joined for text in running)
        least = len(joined) if self._feed is None else len(joined) // 2 + 1
        return bool(self._left) and least <= left == len(running)

    def run(self) -> list[list[int]]:
        """Return the next ids of each text."""
        count = min(self._pace.interval, self._left)
        self._left -= count
        feed = self._feed
        if feed is None:
            self._counts.forwards += count
            self._counts.readbacks += 1
            return self._step([text.row for text in self.texts], count)
        if count > self._ahead:
            self._submit(feed, count - self._ahead)
        feed.fence()
        self.run_ahead()
        return self._collect(feed)

    def run_ahead(self) -> None:
        """Submit passes whose ids are not read back yet, so that the device goes on."""
        self._ahead = min(self._pace.ahead, self._pace.interval, self._left)
        if self._feed is not None and self._ahead:
            self._submit(self._feed, self._ahead)

    def fence_rest(self) -> None:
        """Start to read the ids of the passes that are ahead; no pass may follow."""
        if self._feed is not None and self._ahead:
            self._feed.fence()
            self._left -= self._ahead
            self._ahead, self._has_rest = 0, True

    def rest(self) -> list[list[int]]:
        """Return the ids of the passes that are ahead."""
        self.fence_rest()
        if self._feed is None or not self._has_rest:
            return [[] for _ in self.texts]
        return self._collect(self._feed)

    def _submit(self, feed: Feed, count: int) -> None:
        feed.submit(count)
        self._counts.forwards += count

    def _collect(self, feed: Feed) -> list[list[int]]:
        self._counts.readbacks += 1
        return feed.collect()
