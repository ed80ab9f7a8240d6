"""The rules by which a generation chooses its tokens, whichever strategy decodes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.logprobs import Logprobs
from rdrr_runtime.sampling.params import SamplingParams


class Constraint(Protocol):
    """A constraint on the tokens of one generation, such as a grammar."""

    @property
    def complete(self) -> bool:
        """Whether no further token is allowed."""

    def mask(self) -> npt.NDArray[np.uint32]:
        """Return which tokens are allowed next: token i has bit i mod 32 of word i / 32."""

    def accept(self, token_id: int) -> None:
        """Advance by the token that was chosen."""


@dataclass(frozen=True)
class TokenRules:
    """The rules of a generation: how its tokens are chosen, and what ends it.

    Attributes:
        sampling: How each token is chosen.
        stop_ids: Ids that end the sequence; the id that ends it is delivered as well.
        constraint: Restricts which tokens may follow; None allows all tokens.
        logprobs: Receives an entry for each delivered id; None records nothing.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    logprobs: Logprobs | None = None

    @property
    def on_device(self) -> bool:
        """Whether the device can choose alone: greedy, unconstrained, and nothing recorded."""
        return self.sampling.is_greedy and self.constraint is None and self.logprobs is None
