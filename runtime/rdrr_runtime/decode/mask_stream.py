"""Passes over a window of masks, whose choices are made on the device or here on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rdrr_runtime.backend import MaskFeed
from rdrr_runtime.decode.base import ChosenTokens, Picks
from rdrr_runtime.sampling.logprobs import TokenLogprobs
from rdrr_runtime.sampling.masks import MaskRules


class Pick(Protocol):
    """Runs rows and chooses tokens, see `rdrr_runtime.decode.chooser.Chooser.pick`."""

    def __call__(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int],
        scaled: bool = False,
    ) -> Picks:
        """Choose a token for each of the last `last_n` rows of one pass."""


@dataclass(frozen=True)
class NewTokens:
    """What a pass over a window has added to the sequence.

    Attributes:
        tokens: The tokens that no mask precedes any more; there may be none.
        rows: Token rows of the pass.
    """

    tokens: ChosenTokens
    rows: int


class MaskStream(Protocol):
    """Passes that fill masks after a sequence.

    Attributes:
        window: Positions in the window, which is also the most tokens that a pass can add.
        ahead: Passes that may be submitted before the tokens of earlier passes are read back.
    """

    @property
    def window(self) -> int:
        """See the class."""

    @property
    def ahead(self) -> int:
        """See the class."""

    def submit(self) -> None:
        """Submit one more pass."""

    def collect(self) -> NewTokens:
        """Wait for the oldest pass that was not collected, and return what it has added."""


@dataclass(frozen=True)
class DeviceMasks:
    """A stream whose passes choose on the device.

    Attributes:
        feed: Submits passes and returns their tokens.
        window: See `MaskStream`.
    """

    feed: MaskFeed
    window: int

    @property
    def ahead(self) -> int:
        """See `MaskStream`."""
        return self.feed.ahead

    def submit(self) -> None:
        """See `MaskStream.submit`."""
        self.feed.submit()

    def collect(self) -> NewTokens:
        """See `MaskStream.collect`."""
        filled = self.feed.collect()
        return NewTokens(ChosenTokens(filled.ids), filled.rows)


@dataclass
class Window:
    """Positions after the sequence in the cache, each a token or, as None, a mask.

    Attributes:
        budget: Number of positions that may still be added.
        tokens: Tokens and masks, from the first position that is not cached yet.
        logprobs: Log-probabilities recorded for the tokens, by index in `tokens`.
    """

    budget: int
    tokens: list[int | None] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)

    def extend(self, count: int) -> None:
        """Append up to `count` masks, as many as the budget allows."""
        added = min(count, self.budget)
        self.tokens += [None] * added
        self.budget -= added

    @property
    def masks(self) -> list[int]:
        """Indices of the masks, ascending."""
        return [at for at, token in enumerate(self.tokens) if token is None]

    @property
    def order(self) -> list[int]:
        """Indices of the filled positions, then of the masks, each ascending."""
        return sorted(range(len(self.tokens)), key=lambda at: self.tokens[at] is None)

    def prefix(self) -> list[int]:
        """Return the tokens before the first mask."""
        run: list[int] = []
        for token in self.tokens:
            if token is None:
                break
            run.append(token)
        return run

    def fill(self, picks: Picks, rules: MaskRules) -> None:
        """Fill the masks whose tokens are confident enough.

        Args:
            picks: A token and an entropy for each mask, in order.
            rules: The thresholds that decide which masks are filled.
        """
        masks = self.masks
        chosen = rules.select(np.array(picks.entropies, np.float32), np.array(masks, np.int64))
        for index in chosen:
            self.tokens[masks[index]] = picks.ids[index]
            if picks.logprobs:
                self.logprobs[masks[index]] = picks.logprobs[index]

    def recorded(self, count: int) -> list[TokenLogprobs]:
        """Return the log-probabilities recorded for the first `count` tokens."""
        return [self.logprobs[at] for at in range(count) if at in self.logprobs]

    def drop(self, count: int) -> None:
        """Remove the first `count` tokens."""
        del self.tokens[:count]
        self.logprobs = {
            at - count: logprob for at, logprob in self.logprobs.items() if at >= count
        }


class HostMasks:
    """A stream whose choices are made on the host; a pass runs when it is collected.

    Args:
        pick: Runs the rows and chooses their tokens.
        rules: The window, and which masks a pass fills.
        base: Tokens already in the cache.
        count: Number of tokens that the sequence may still get, at least one.
        scaled: Whether to compute the entropies after dividing the logits by the temperature.
    """

    ahead = 0

    def __init__(
        self, pick: Pick, rules: MaskRules, base: int, count: int, *, scaled: bool
    ) -> None:
        self._pick, self._rules, self._scaled = pick, rules, scaled
        self._base = base
        self._window = Window(count)
        self._window.extend(rules.window)

    @property
    def window(self) -> int:
        """See `MaskStream`."""
        return self._rules.window

    def submit(self) -> None:
        """Do nothing: the next `collect` runs the pass."""

    def collect(self) -> NewTokens:
        """Run a pass, fill masks, and return the tokens that no mask precedes any more."""
        window = self._window
        ready, order, masks = len(window.prefix()), window.order, len(window.masks)
        tokens = [window.tokens[at] for at in order]
        picks = self._pick(
            [self._rules.mask_id if token is None else token for token in tokens],
            self._base,
            last_n=masks,
            positions=[self._base + at for at in order],
            scaled=self._scaled,
        )
        window.drop(ready)
        self._base += ready
        window.fill(picks, self._rules)
        new = window.prefix()
        window.extend(len(new))
        return NewTokens(ChosenTokens(new, window.recorded(len(new))), len(order))
