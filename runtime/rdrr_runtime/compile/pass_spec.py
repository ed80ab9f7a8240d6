"""The kinds of pass that a model has: how many rows, of which sequences, and which logits.

Programs, batches, the tuner and `rdrr explain` all name a pass by its `PassSpec`; there is no other
table of them. What a pass consists of is decided by the lowering, and when it runs by the backends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Logits(Enum):
    """Rows of a pass whose logits are computed."""

    LAST = "last"
    ALL = "all"
    LAST_N = "last n"
    """As many of the last rows as the head is run for; each of them gets a pick."""


class Slots(Enum):
    """Where the rows of a pass have their keys and values."""

    CONSECUTIVE = "consecutive"
    """In consecutive slots of one sequence."""
    DISTINCT = "distinct"
    """Each in a sequence of its own."""
    MAPPED = "mapped"
    """In any sequences: each row says which, and which slot."""


@dataclass(frozen=True)
class PassSpec:
    """One kind of pass.

    Attributes:
        name: What explanations, profiles and tuned parameters call it.
        rows: Most token rows.
        logits: Rows whose logits are computed.
        slots: Where the rows have their keys and values.
    """

    name: str
    rows: int
    logits: Logits = Logits.LAST
    slots: Slots = Slots.CONSECUTIVE

    def within(self, context: int) -> PassSpec:
        """Return the pass with no more rows than a context has slots."""
        return replace(self, rows=min(self.rows, context))

    @property
    def has_picks(self) -> bool:
        """Whether each row whose logits are computed gets its most probable id."""
        return self.logits is Logits.LAST_N

    @property
    def is_mapped(self) -> bool:
        """Whether rows say by themselves to which sequence and slot they belong."""
        return self.slots is not Slots.CONSECUTIVE


DECODE = PassSpec("decode", 1)
PREFILL = PassSpec("prefill", 512)
SCORE = PassSpec("score", 64, Logits.ALL)
"""Logits of every row are kept, and a vocabulary can be large."""

SMALL_WINDOW = PassSpec("small window", 8, Logits.LAST_N)
WINDOW = PassSpec("window", 32, Logits.LAST_N)
"""Several tokens of one sequence, such as draft tokens to be verified."""


def batch_of(rows: int) -> PassSpec:
    """Return the pass over one row of each of up to `rows` sequences."""
    return PassSpec(f"batch of {rows}", rows, Logits.LAST_N, Slots.DISTINCT)


def batch_fill(rows: int) -> PassSpec:
    """Return the pass that runs rows of any sequences for their keys and values."""
    return PassSpec(f"batch fill of {rows}", rows, Logits.LAST_N, Slots.MAPPED)


BATCHES = tuple(batch_of(rows) for rows in (2, 4, 8, 16, 32))
"""Decode steps of several sequences, by their most rows: each size suits other kernels."""

LOADED = (DECODE, PREFILL)
"""Passes that every model is loaded with."""

EXPLAINED = (DECODE, SMALL_WINDOW, BATCHES[-1], PREFILL)
"""Passes whose choices differ from each other's."""

TUNED = (PREFILL, DECODE, SMALL_WINDOW, WINDOW, *BATCHES)
"""Passes whose kernels have parameters to tune, the prompt first: it fills the cache."""
