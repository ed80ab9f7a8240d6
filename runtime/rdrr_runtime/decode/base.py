"""The input of a decoding strategy, its output, and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs


@dataclass
class Counts:
    """Counters of the work that one generation took.

    Attributes:
        forwards: Forward passes after those of the prompt.
        wasted: Forward passes whose token was discarded because the sequence had already ended.
        rows: Token rows of the forward passes.
        wasted_rows: Token rows that gave no token of the sequence: masks, rejected draft tokens,
            and rows after the end of the sequence.
        drafted: Draft tokens that were proposed.
        accepted: Draft tokens that became part of the sequence.
        readbacks: Times that the host waited for the device.
    """

    forwards: int = 0
    wasted: int = 0
    rows: int = 0
    wasted_rows: int = 0
    drafted: int = 0
    accepted: int = 0
    readbacks: int = 0


@dataclass(frozen=True)
class Job:
    """The work of one generation: the prompt to run, and the number of tokens to generate.

    Attributes:
        prompt: Token ids that are not in the cache yet, at least one.
        base: Tokens already in the cache.
        max_tokens: Largest number of new tokens.
    """

    prompt: Sequence[int]
    base: int
    max_tokens: int


@dataclass(frozen=True)
class ChosenTokens:
    """Tokens that follow each other in the sequence.

    Attributes:
        ids: Token ids, in order.
        logprobs: Log-probabilities recorded for each token; empty where none are requested.
    """

    ids: list[int]
    logprobs: Sequence[TokenLogprobs] = field(default=())


@dataclass(frozen=True)
class Picks:
    """Independently chosen tokens, one per row; the rows need not follow each other.

    Attributes:
        ids: The token id of each row.
        entropies: The entropy of each row's distribution, in nats.
        logprobs: Log-probabilities recorded for each token; empty where none are requested.
    """

    ids: list[int]
    entropies: list[float]
    logprobs: Sequence[TokenLogprobs] = field(default=())


def until_stop(ids: list[int], stop_ids: frozenset[int]) -> tuple[list[int], bool]:
    """Return the ids up to and including the first stop id, and whether there was one."""
    for index, token_id in enumerate(ids):
        if token_id in stop_ids:
            return ids[: index + 1], True
    return ids, False
