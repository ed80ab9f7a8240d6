"""What a generation demands of its tokens, whichever strategy decodes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams


class Constraint(Protocol):
    """Says which tokens may come next; it lives for one generation."""

    @property
    def complete(self) -> bool:
        """Whether nothing more may come."""
        ...

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return bit i mod 32 of word i / 32: whether token i may come next."""
        ...

    def accept(self, token_id: int) -> None:
        """Take the token that came."""
        ...


@dataclass(frozen=True)
class TokenRules:
    """How the tokens of a generation are chosen, and what ends it.

    Attributes:
        sampling: How each token is chosen.
        stop_ids: Ids that end the sequence; the one that did is delivered too.
        constraint: What may come; anything when None.
        logprobs: Filled, where wanted, with an entry for each id delivered.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logprobs: Logprobs | None = None

    @property
    def on_device(self) -> bool:
        """Whether the most probable token is all that is asked for."""
        return self.sampling.is_greedy and self.constraint is None and self.logprobs is None
