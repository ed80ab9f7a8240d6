"""Sampling from explicit probabilities on the host.

Speculative decoding needs it, since it compares the probabilities of two models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import distribution

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Allowed = npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class ProbabilitySampler:
    """A sampler that works on probabilities and verifies draft tokens.

    Attributes:
        params: Sampling parameters, which shape the probabilities.
        random: Random numbers of one generation.
    """

    params: SamplingParams
    random: np.random.Generator

    @staticmethod
    def make(params: SamplingParams) -> ProbabilitySampler:
        """Return a sampler whose random numbers follow from the seed of the parameters."""
        return ProbabilitySampler(params, np.random.Generator(np.random.Philox(params.seed)))

    def probabilities(self, logits: F32, seen: Sequence[int], allowed: Allowed = None) -> F64:
        """Return the probability of each token, f64 [vocab].

        Args:
            logits: Logits of one row, f32 [vocab].
            seen: Ids that the penalties apply to.
            allowed: Which tokens are allowed, bool [vocab]; all tokens when None.
        """
        return distribution(logits, seen, self.params, allowed)

    def sample(self, probabilities: F64) -> int:
        """Sample a token; the probabilities need not sum to 1."""
        edges = np.cumsum(probabilities)
        token_id = int(np.searchsorted(edges, self.random.random() * edges[-1], side="right"))
        return min(token_id, int(np.flatnonzero(probabilities)[-1]))

    def verify(self, token_id: int, target: F64, proposed: F64 | None) -> int:
        """Return a draft token if it is accepted, otherwise a token that replaces it.

        A token x sampled from q is accepted with probability min(1, p(x) / q(x)). A rejected token
        is replaced by a sample of max(p - q, 0). The returned token then has the distribution p
        (Leviathan et al. 2023).

        Args:
            token_id: The draft token.
            target: The target model's probabilities p, f64 [vocab].
            proposed: The draft's probabilities q, f64 [vocab]; None if the draft token was not
                sampled, which is a q of 1 at that token.
        """
        drafted = np.zeros_like(target)
        drafted[token_id] = 1.0
        if proposed is not None:
            drafted = proposed
        if self.random.random() * drafted[token_id] < target[token_id]:
            return token_id
        rest = np.maximum(target - drafted, 0.0)
        # Where p and q differ only by rounding, nothing may remain to sample from.
        return self.sample(rest if rest.any() else target)
