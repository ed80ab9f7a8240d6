"""The kinds of pass: how many rows they have, of which sequences, and which logits they compute.

Batches, the tuner and `rdrr explain` all identify a pass by its `PassSpec`; there is no other
table. The lowering decides what a pass consists of, the backends when it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Logits(Enum):
    """The rows of a pass for which logits are computed."""

    LAST = "last"
    ALL = "all"
    LAST_N = "last n"
    """The last n rows, where n is given with each run; each of them gets a pick."""
    NONE = "none"
    """No rows: the pass ends with the final norm of every row."""


class Slots(Enum):
    """The slots in which the rows of a pass store their keys and values."""

    CONSECUTIVE = "consecutive"
    """Consecutive slots of one sequence."""
    DISTINCT = "distinct"
    """One slot of a different sequence for each row."""
    MAPPED = "mapped"
    """Any slots of any sequences: each row names its sequence and slot."""


@dataclass(frozen=True)
class PassSpec:
    """One kind of pass.

    Attributes:
        name: Name in explanations, profiles and tuned parameters.
        rows: Largest number of token rows.
        logits: The rows for which logits are computed.
        slots: The slots in which the rows store their keys and values.
        keeps_hidden: Whether the hidden states of the rows are kept for a draft head.
    """

    name: str
    rows: int
    logits: Logits = Logits.LAST
    slots: Slots = Slots.CONSECUTIVE
    keeps_hidden: bool = False

    def within(self, context: int) -> PassSpec:
        """Return the pass with its rows limited to the slots of a context."""
        return replace(self, rows=min(self.rows, context))

    @property
    def has_picks(self) -> bool:
        """Whether the pass computes the most probable id of each row that has logits."""
        return self.logits is Logits.LAST_N

    @property
    def is_multi_sequence(self) -> bool:
        """Whether each row names the sequence and slot that it belongs to."""
        return self.slots is not Slots.CONSECUTIVE


DECODE = PassSpec("decode", 1)
PREFILL = PassSpec("prefill", 512)
LONG_PREFILL = PassSpec("prefill of 1024", 1024)
PREFILLS = (PassSpec("prefill of 32", 32), PassSpec("prefill of 128", 128), PREFILL, LONG_PREFILL)
"""Passes over consecutive tokens of a prompt by their number of rows; short ones run kernels that
multiply fewer padding rows. On an H200, 8 tokens of a 1B model in Q4_K_M take 7.4, 4.8 or 1.6 ms in
a pass of at most 512, 128 or 32 rows, 64 tokens 7.7 or 5.1 ms, and 128 tokens 8.5 or 5.9 ms. Where
subgroups multiply matrices, 4,096 tokens of an 8B model take 356 ms in passes of 1,024 rows, whose
tiles occupy a GPU more evenly, and 374 in passes of 512."""

SCORE = PassSpec("score", 64, Logits.ALL)
"""The rows are few because the logits of all of them are kept, and a vocabulary can be large."""

HIDDEN = PassSpec("hidden", 512, Logits.NONE)
"""The rows are the hidden states of a text, from which its embedding is made."""

SHORT_HIDDEN = PassSpec("hidden of 512", 512, Logits.NONE)
"""The same for few packed texts, with kernels for as many rows: `HIDDEN` has many more then."""

SMALL_WINDOW = PassSpec("small window", 8, Logits.LAST_N)
WINDOW = PassSpec("window", 32, Logits.LAST_N)
"""Passes over several tokens of one sequence, such as draft tokens to be verified."""


def batch_of(rows: int) -> PassSpec:
    """Return the decode pass of a batch: one row of each of up to `rows` sequences.

    With one row it is the decode pass of a single sequence, whose argmax also advances the step.
    """
    logits = Logits.LAST if rows == 1 else Logits.LAST_N
    return PassSpec(f"batch of {rows}", rows, logits, Slots.DISTINCT)


def batch_fill(rows: int) -> PassSpec:
    """Return the pass that stores the keys and values of rows of any sequences."""
    return PassSpec(f"batch fill of {rows}", rows, Logits.LAST_N, Slots.MAPPED)


BATCHES = tuple(batch_of(rows) for rows in (1, 2, 4, 8, 16, 32))
"""Decode passes of a batch by their number of rows; different kernels are fastest at each size."""

EXPLAINED = (DECODE, SMALL_WINDOW, BATCHES[-1])
"""Passes whose choices of kernels differ from each other; `rdrr explain` shows them before those of
prompts."""

TUNED = (PREFILL, *PREFILLS[:-1], DECODE, SMALL_WINDOW, WINDOW, *BATCHES)
"""Passes whose kernels can be tuned; prefill comes first, since it fills the cache."""
