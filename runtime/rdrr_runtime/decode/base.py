"""What every decoding strategy is given, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs


@dataclass
class Counts:
    """Work of one generation.

    Attributes:
        forwards: Forward passes after the prompt's.
        wasted: Those of them whose token was thrown away because the sequence had ended.
        rows: Token rows of these passes.
        wasted_rows: Those of them that gave no token of the sequence: a mask, a rejected draft
            token, what came after the end.
        drafted: Draft tokens.
        accepted: Those of them that came to be in the sequence.
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
    """One generation: what has to be run first, and how much may come.

    Attributes:
        prompt: Token ids that are not in the cache yet, at least one.
        base: Tokens already in the cache.
        max_tokens: Most new tokens.
    """

    prompt: Sequence[int]
    base: int
    max_tokens: int


@dataclass(frozen=True)
class ChosenTokens:
    """Tokens that were chosen, in order.

    Attributes:
        ids: Their ids.
        logprobs: What was recorded for each, where that is wanted.
    """

    ids: list[int]
    logprobs: Sequence[TokenLogprobs] = field(default=())


def until_stop(ids: list[int], stop_ids: frozenset[int]) -> tuple[list[int], bool]:
    """Return the ids up to and including the first stop id, and whether there was one."""
    for index, token_id in enumerate(ids):
        if token_id in stop_ids:
            return ids[: index + 1], True
    return ids, False
