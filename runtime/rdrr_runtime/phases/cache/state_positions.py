"""The position of a sequence's recurrent states, and the copies of them that are kept.

A key-value cache can be cut back to any of its tokens. A state cannot: it holds all tokens that it
has absorbed at once. So a sequence of a model with states can resume in three places only: at its
beginning, where states count as zero whatever the memory holds; at the present position of its
states; and where a copy was kept. A caller that wants to resume at a position asks for the last of
these places that is not behind it (`resumable`), and runs the tokens from there on again. They are
run as a prompt, in passes of many rows, which is cheap beside decoding them.

A copy is kept at the end of every prompt. There a conversation continues when decoding has run
ahead past the end of a reply, and when the template drops a part of the reply from the history. Two
copies are kept, the latest of the sequence. A copy is discarded as soon as the sequence resumes
before it, since the tokens that it has absorbed are replaced then.

Windows over draft tokens need no copies: a state absorbs only the rows of a window that are certain
(states/snippets/kept.wgsl). The accepted draft tokens are rows of the next window again, where they
are certain. A pass that reads all weights takes hardly longer for these rows.
"""

from __future__ import annotations

from typing import Protocol

from rdrr_format.errors import GenerationError

COPIES = 2
"""Copies of the states of a sequence."""

UNKNOWN = 1 << 62
"""A position behind all others, at which nothing resumes."""


class StateCopies(Protocol):
    """The states of a sequence with memory for copies of them."""

    def save(self, index: int) -> None:
        """Copy the states into the copy `index`."""

    def restore(self, index: int) -> None:
        """Copy the copy `index` into the states."""


class StatePosition:
    """The number of tokens that the states of a sequence have absorbed.

    Args:
        copies: The states; None for a model without states, which can resume everywhere.
        count: Number of copies.
    """

    def __init__(self, copies: StateCopies | None = None, count: int = COPIES) -> None:
        self._copies, self._count = copies, count
        self._at = 0
        self._kept: dict[int, int] = {}

    @property
    def has_states(self) -> bool:
        """Whether the model has states."""
        return self._copies is not None

    def resumable(self, base: int) -> int:
        """Return the last position up to `base` at which the sequence can resume."""
        if self._copies is None:
            return base
        return max(at for at in (0, self._at, *self._kept) if at <= base)

    def index(self, position: int) -> int | None:
        """Return which copy has absorbed `position` tokens; None if the states themselves have.

        Raises:
            GenerationError: None of them has.
        """
        if position in (0, self._at) or self._copies is None:
            return None
        if position not in self._kept:
            raise GenerationError(
                "the sequence cannot resume there, because its recurrent states are not kept",
                expected=f"position {self.resumable(position)}",
                found=position,
            )
        return self._kept[position]

    def begin(self, base: int) -> None:
        """Prepare the states for a pass whose first token follows `base` tokens.

        Raises:
            GenerationError: The sequence cannot resume there.
        """
        index = self.index(base)
        if self._copies is not None and index is not None:
            self._copies.restore(index)
        self.reset(base)

    def reset(self, position: int) -> None:
        """Note that the states have absorbed `position` tokens, and discard copies behind them."""
        self._at = position
        self._kept = {at: index for at, index in self._kept.items() if at <= position}

    def leave(self) -> None:
        """Note that the states have absorbed tokens of which nobody counts how many."""
        self._at = UNKNOWN

    def copy_at(self, position: int) -> int | None:
        """Return which copy has absorbed `position` tokens; None if none has."""
        return self._kept.get(position)

    def replace(self, position: int) -> None:
        """Note that the states are those of another sequence, after `position` of its tokens."""
        self._at, self._kept = position, {}

    def advance(self, tokens: int) -> None:
        """Note that the states have absorbed further tokens."""
        self._at += tokens

    def keep(self) -> None:
        """Keep a copy of the states; the copy that has absorbed the fewest tokens makes room."""
        if self._copies is None or self._at in self._kept:
            return
        if len(self._kept) == self._count:
            del self._kept[min(self._kept)]
        index = next(at for at in range(self._count) if at not in self._kept.values())
        self._copies.save(index)
        self._kept[self._at] = index
