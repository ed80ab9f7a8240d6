"""Sampling from probabilities on the host, where a strategy compares those of two models."""

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
    """How tokens are sampled.

    Attributes:
        params: Temperature and the rest.
        random: Random numbers of one generation.
    """

    params: SamplingParams
    random: np.random.Generator

    @staticmethod
    def make(params: SamplingParams) -> ProbabilitySampler:
        """Return a sampler with the random numbers of the seed."""
        return ProbabilitySampler(params, np.random.Generator(np.random.Philox(params.seed)))

    def probabilities(self, logits: F32, seen: Sequence[int], allowed: Allowed = None) -> F64:
        """Return the probability of each token after `seen`, of those allowed."""
        return distribution(logits, seen, self.params, allowed)

    def sample(self, probabilities: F64) -> int:
        """Return a token sampled by these probabilities, which need not sum to one."""
        edges = np.cumsum(probabilities)
        found = int(np.searchsorted(edges, self.random.random() * edges[-1], side="right"))
        return min(found, int(np.flatnonzero(probabilities)[-1]))

    def verify(self, token_id: int, own: F64, proposed: F64 | None) -> int:
        """Return a draft token if it is accepted, else a token in its place.

        A token x sampled from q is accepted with probability min(1, p(x) / q(x)), and replaced by a
        sample of max(p - q, 0), so what is returned has the distribution p (Leviathan et al. 2023).

        Args:
            token_id: The draft token.
            own: The model's probabilities p.
            proposed: The draft's probabilities q; None where nothing was sampled.
        """
        drafted = np.zeros_like(own)
        drafted[token_id] = 1.0
        if proposed is not None:
            drafted = proposed
        if self.random.random() * drafted[token_id] < own[token_id]:
            return token_id
        rest = np.maximum(own - drafted, 0.0)
        # Nothing may be left where both are the same but for rounding.
        return self.sample(rest if rest.any() else own)
