"""The text of a generation as an iterator over token ids, with stop strings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from rdrr_format.html_tables import facts_table
from rdrr_format.printing import shortened

if TYPE_CHECKING:
    from rdrr_format.token_stream import Segment
    from rdrr_runtime.decode.stats import GenerationStats
    from rdrr_runtime.sampling.logprobs import Logprobs, TokenLogprobs
    from rdrr_runtime.text.tokenizer import TextCodec


@dataclass(frozen=True, repr=False)
class Completion:
    """The result for one prompt of a batch.

    Attributes:
        text: The generated text, without the prompt and special tokens.
        prompt_ids: Token ids of the prompt.
        token_ids: New token ids, an end-of-text token included.
        finish: `stop` (an end-of-text token), `length` (the limit of new tokens) or `context` (the
            context is full).
    """

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    finish: str

    def __repr__(self) -> str:
        return f"<Completion {shortened(repr(self.text), 60)}: {self.finish}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        tokens = f"{len(self.prompt_ids):,} of the prompt, {len(self.token_ids):,} new"
        facts = {"text": self.text, "tokens": tokens, "finish": self.finish}
        return facts_table("Completion", facts)


class Generation(Iterator[str]):
    """Text as it is generated: iterate over it, or call `read` for all of it.

    Where the package has no tokenizer the text is empty, and `token_ids` is the result.

    Attributes:
        prompt_ids: Token ids of the prompt.
        token_ids: New token ids so far, an end-of-text token included.
        stats: Timings and counts, complete once the iterator has ended.
    """

    def __init__(
        self,
        runs: Generator[list[int], None, None],
        codec: TextCodec,
        *,
        prompt_ids: Sequence[int],
        stats: GenerationStats,
        stop: Sequence[str] = (),
        logprobs: Logprobs | None = None,
    ) -> None:
        if stop:
            codec.require()
        self.prompt_ids = list(prompt_ids)
        self.token_ids: list[int] = []
        self.stats = stats
        self._logprobs = logprobs
        self._text = AnswerText(codec, prompt_ids, stop)
        self._runs = runs
        self._ended = False
        self._cancelled = False
        self._reading = threading.Lock()

    def __next__(self) -> str:
        # Two threads may read one generation: each piece goes to one of them.
        with self._reading:
            while not self._ended:
                if self._cancelled:
                    self._end()
                    piece = self._text.rest()
                else:
                    piece = self._next_piece()
                if piece:
                    return piece
        raise StopIteration

    def __repr__(self) -> str:
        return f"<Generation: {len(self.token_ids)} new tokens, {self.stats.finish}>"

    def _repr_html_(self) -> str:
        """Return the table of the figures for notebooks."""
        return self.stats._repr_html_()

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._text.stopped_by

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log-probabilities of each of `token_ids`; None if they were not asked for."""
        recorded = self._logprobs
        return None if recorded is None else recorded.tokens[: len(self.token_ids)]

    def read(self) -> str:
        """Return all the text that is still to come."""
        return "".join(self)

    def cancel(self) -> None:
        """Let the generation end after the step that runs, without waiting for it."""
        self._cancelled = True

    def close(self) -> None:
        """Stop generating. A step that another thread has begun ends first."""
        with self._reading:
            self._end()

    def _next_piece(self) -> str:
        """Return the text of the next run of ids, which may be empty."""
        try:
            ids = next(self._runs, None)
        except BaseException:
            self._ended = True
            raise
        if ids is None:
            self._ended = True
            return self._text.rest()
        pieces = []
        for token_id in ids:
            self.token_ids.append(token_id)
            pieces.append(self._text.add(token_id))
            if self._text.stopped_by is not None:
                self._end()
                break
        return "".join(pieces)

    def _end(self) -> None:
        self._ended = True
        self._runs.close()


class AnswerText:
    """The text of ids that arrive one at a time, up to a stop string.

    Args:
        codec: The tokenizer.
        prompt_ids: The ids that come before, whose text is not returned.
        stop: The stop strings.
        shows: Returns whether the text of a special token is shown.
    """

    def __init__(
        self,
        codec: TextCodec,
        prompt_ids: Sequence[int],
        stop: Sequence[str],
        shows: Callable[[str], bool] | None = None,
    ) -> None:
        self._filter = StopFilter(stop, shows)
        self._stream = codec.stream(prompt_ids)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._filter.found

    def add(self, token_id: int) -> str:
        """Add an id, and return the text that is certain by now."""
        text = self._filter.feed_all(self._stream.segments(token_id))
        if self._filter.would_stop(held := self._stream.held()):
            text += self._filter.feed_all(held)
        return text

    def rest(self) -> str:
        """Return the text that the last ids leave: incomplete characters, what may be a stop."""
        return self._filter.feed_all(self._stream.rest()) + self._filter.rest()


class StopFilter:
    """A filter that ends a text before the first stop string, and removes special tokens.

    A stop string may contain special tokens. The filter holds back the end of the text as long as
    that may be the beginning of a stop string.

    Args:
        stop: The stop strings; empty ones are ignored.
        shows: Returns whether the text of a special token is returned; None for never.

    Attributes:
        found: The stop string that ended the text; None so far.
    """

    def __init__(self, stop: Sequence[str], shows: Callable[[str], bool] | None = None) -> None:
        self._stop = tuple(text for text in stop if text)
        self._shows = shows
        self._held = ""
        self._visible = bytearray()
        self.found: str | None = None

    def feed_all(self, segments: Sequence[Segment]) -> str:
        """Add segments, and return the text that certainly precedes any stop string."""
        return "".join(
            self.feed_special(part.text) if part.special else self.feed(part.text)
            for part in segments
        )

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that certainly precedes any stop string."""
        return self._add(piece, special=False)

    def feed_special(self, token: str) -> str:
        """Add a special token, which is compared with the stop strings but rarely returned."""
        return self._add(token, special=self._shows is None or not self._shows(token))

    def _add(self, piece: str, *, special: bool) -> str:
        if self.found is not None:
            return ""
        self._held += piece
        self._visible += bytes([not special]) * len(piece)
        hits = [(self._held.find(text), text) for text in self._stop if text in self._held]
        if hits:
            end, self.found = min(hits)
            sure = self._take(end)
            self._held = ""
            return sure
        keep = max((_overlap(self._held, text) for text in self._stop), default=0)
        return self._take(len(self._held) - keep)

    def would_stop(self, segments: Sequence[Segment]) -> bool:
        """Return whether a stop string would end the text if these segments came next."""
        if not segments or self.found is not None:
            return False
        text = self._held + "".join(segment.text for segment in segments)
        return any(stop in text for stop in self._stop)

    def rest(self) -> str:
        """Return the text that is still held back, once no more pieces come."""
        return self._take(len(self._held))

    def _take(self, end: int) -> str:
        """Remove the first characters, and return those that are no special tokens."""
        text = "".join(compress(self._held[:end], self._visible))
        self._held = self._held[end:]
        del self._visible[:end]
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
