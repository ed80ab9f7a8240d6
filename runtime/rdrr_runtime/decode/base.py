"""What every decoding strategy is given and what it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rdrr_runtime.backend import Backend


@dataclass
class Counts:
    """Work of one generation.

    Attributes:
        forwards: Forward passes after the prompt's.
        wasted: Those of them whose token was thrown away because the text had ended.
        rows: Token rows of these passes.
        wasted_rows: Those of them that gave no token of the text: a mask, a draft that was not
            accepted, what came after the end.
        drafted: Tokens that a draft proposed.
        accepted: Those of them that came to be in the text.
        readbacks: Times that the host waited for the device.
        completed: Whether the text ended because its constraint lets nothing more come.
    """

    forwards: int = 0
    wasted: int = 0
    rows: int = 0
    wasted_rows: int = 0
    drafted: int = 0
    accepted: int = 0
    readbacks: int = 0
    completed: bool = False


@dataclass(frozen=True)
class Job:
    """One generation: the prompt, where it starts in the cache, and when it ends.

    Attributes:
        prompt: Token ids that are not in the cache yet, at least one.
        base: Tokens already in the cache.
        max_tokens: Most new tokens.
        stop_ids: Ids that end the text; the one that did is delivered too.
        seen: Ids before the prompt, for the repetition penalty.
    """

    prompt: Sequence[int]
    base: int
    max_tokens: int
    stop_ids: frozenset[int]
    seen: Sequence[int] = field(default=())


class Strategy(Protocol):
    """A way of decoding."""

    def run(self, backend: Backend, job: Job, counts: Counts) -> Iterator[list[int]]:
        """Runs of new ids until the job ends, each as soon as it is known."""
        ...


def until_stop(ids: list[int], stop_ids: frozenset[int]) -> tuple[list[int], bool]:
    """The ids up to and including the first that ends the text, and whether there was one."""
    for index, token_id in enumerate(ids):
        if token_id in stop_ids:
            return ids[: index + 1], True
    return ids, False
