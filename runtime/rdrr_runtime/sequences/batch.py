"""Several prompts continued together: who runs in which sequence, and when each ends.

Prompts wait until a sequence is free, take it, and leave it when their text ends, so the passes
stay full while there is work. Every text is the one that its prompt gives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rdrr_runtime.decode.base import Counts, until_stop
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """A token of a text: its id, the sequence that it belongs to, and its slot in it."""

    token: int
    sequence: int
    slot: int


class BatchBackend(Protocol):
    """What runs rows of several texts in one pass."""

    sequences: int
    context: int

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows for their keys and values alone: of a text one slot after the other."""
        ...

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run a row of each of some texts, then feed back the likeliest tokens; ids by row."""
        ...

    def logits(self, rows: Sequence[Row]) -> F32:
        """Run a row of each of some texts; logits of each, float32 [rows, vocab]."""
        ...


@runtime_checkable
class BatchingBackend(Protocol):
    """A backend that has sequences of several texts besides its own."""

    def batch(self, sequences: int, context: int) -> BatchBackend:
        """Caches of at least as many sequences of at least as many slots."""
        ...


@runtime_checkable
class DrawingBatch(Protocol):
    """A batch that draws tokens itself."""

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a text in a sequence; `seen` are ids that the penalties apply to."""
        ...

    def draw(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """As `BatchBackend.greedy`, with the tokens that are drawn for each text."""
        ...


@dataclass
class Text:
    """A prompt and what came after it.

    Attributes:
        prompt: Token ids, at least one.
        left: New ids that may still come.
        new: New ids, an end-of-text included.
        finish: `stop`, `length` or `context`; `running` until then.
        sequence: Where it runs.
        sampler: Draws its tokens where the backend does not; None for the likeliest.
    """

    prompt: Sequence[int]
    left: int
    new: list[int] = field(default_factory=list)
    finish: str = "running"
    sequence: int = -1
    sampler: Sampler | None = None

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


Step = Callable[[Sequence[Text]], list[list[int]]]
"""Runs the next rows of texts and returns new ids of each, all as many."""


def run_batch(
    backend: BatchBackend,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: SamplingParams,
    interval: int,
    stop_ids: frozenset[int],
    counts: Counts,
) -> list[Text]:
    """Continue all prompts.

    Args:
        backend: Runs them.
        prompts: Token ids, each of at least one, and of no more than the backend's context.
        max_tokens: Most new ids of each.
        sampling: How tokens are chosen; each text has draws of its own from the same seed.
        interval: Steps between two readbacks where tokens are chosen on the device.
        stop_ids: Ids that end a text.
        counts: Filled: a forward is a pass over all rows.
    """
    texts = [_text(one, backend.context, max_tokens, sampling) for one in prompts]
    drawing = backend if isinstance(backend, DrawingBatch) and not sampling.is_greedy else None
    if drawing is not None:
        step = _issued(drawing.draw, interval)
    else:
        step = _issued(backend.greedy, interval) if sampling.is_greedy else _drawn(backend)
    waiting, free = list(texts), list(range(backend.sequences))
    running: list[Text] = []
    while waiting or running:
        entering = [waiting.pop(0) for _ in free[: len(waiting)]]
        for text in entering:
            text.sequence = free.pop(0)
            if drawing is not None:
                drawing.begin(text.sequence, sampling, text.prompt)
        if rows := [row for text in entering for row in text.filling]:
            backend.fill(rows)
        running += entering
        found = step(running)
        counts.readbacks += 1
        counts.forwards += len(found[0])
        for text, ids in zip(running, found, strict=True):
            _take(text, ids, stop_ids, max_tokens)
        free += [one.sequence for one in running if one.finish != "running"]
        running = [one for one in running if one.finish == "running"]
    return texts


def _text(prompt: Sequence[int], context: int, asked: int, sampling: SamplingParams) -> Text:
    sampler = None if sampling.is_greedy else Sampler(sampling)
    return Text(prompt, min(asked, context - len(prompt) + 1), sampler=sampler)


def _take(text: Text, ids: list[int], stop_ids: frozenset[int], asked: int) -> None:
    delivered, ended = until_stop(ids[: text.left], stop_ids)
    text.new += delivered
    text.left -= len(delivered)
    if ended:
        text.finish = "stop"
    elif not text.left:
        text.finish = "length" if len(text.new) == asked else "context"


def _issued(run: Callable[[Sequence[Row], int], list[list[int]]], interval: int) -> Step:
    """Steps of a backend that chooses tokens itself, several between two readbacks."""

    def step(texts: Sequence[Text]) -> list[list[int]]:
        # No row may run beyond its context.
        count = min(interval, *(text.left for text in texts))
        return run([text.row for text in texts], count)

    return step


def _drawn(backend: BatchBackend) -> Step:
    def step(texts: Sequence[Text]) -> list[list[int]]:
        logits = backend.logits([text.row for text in texts])
        return [[_draw(text, row)] for text, row in zip(texts, logits, strict=True)]

    return step


def _draw(text: Text, logits: F32) -> int:
    assert text.sampler is not None
    return text.sampler.choose(logits, [*text.prompt, *text.new])
