"""How a token is sampled on the host, as `SamplingParams` say.

Order of the steps: repetition penalty, presence and frequency penalties, bias, mask, temperature,
top-k, top-p, min-p, choice. Tokens exactly as probable as the last one kept are kept too. The
choice is the largest of score + Gumbel noise, see `rdrr_runtime.sampling.randomness`.
`phases/sample.py` takes the same steps with the same random numbers on the GPU, so one seed gives
one sequence on both, except where two candidates lie within f32's rounding of each other. Greedy
decoding comes to neither: its argmax is part of the pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed, gumbel, random_words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Sampler:
    """Samples tokens; counts them, so that one seed gives one sequence.

    Args:
        options: How to choose.
    """

    def __init__(self, options: SamplingParams) -> None:
        self._options = options
        self._seed = fresh_seed() if options.seed is None else options.seed
        self._steps = options.drawn

    def choose(
        self, logits: F32, seen: Sequence[int] = (), allowed: npt.NDArray[np.bool_] | None = None
    ) -> int:
        """One token id.

        Args:
            logits: float32 [vocab].
            seen: Ids that the penalties apply to, as often as they were there.
            allowed: bool [vocab], tokens that may be sampled; all when None.
        """
        options = self._options
        scores = _adjusted(logits, seen, options)
        if allowed is not None:
            scores[~allowed] = -np.inf
        if options.temperature == 0:
            return int(np.argmax(scores))
        # As the GPU has it: in f32, by the inverse.
        scores *= np.float32(options.inverse_temperature)
        ids = _kept(scores.astype(np.float64), options)
        noise = gumbel(random_words(self._seed, self._steps, ids))
        self._steps += 1
        return int(ids[np.argmax(scores[ids] + noise)])


def _adjusted(logits: F32, seen: Sequence[int], options: SamplingParams) -> F32:
    """The logits after penalties and bias."""
    scores = logits.astype(np.float32)
    if options.penalizes and len(seen):
        ids, counts = np.unique(np.asarray(seen), return_counts=True)
        repeat = np.float32(options.repeat_penalty or 1.0)
        values = scores[ids]
        values = np.where(values > 0, values / repeat, values * repeat)
        values -= np.float32(options.presence_penalty)
        scores[ids] = values - counts.astype(np.float32) * np.float32(options.frequency_penalty)
    for token_id, bias in options.logit_bias.items():
        scores[token_id] += np.float32(bias)
    return scores


def _kept(scores: F64, options: SamplingParams) -> npt.NDArray[np.intp]:
    """Ids of the tokens that may be sampled: those at or above the highest of three thresholds."""
    least, largest = np.finfo(np.float64).min, scores.max()
    if options.top_k and options.top_k < len(scores):
        least = max(least, np.partition(scores, -options.top_k)[-options.top_k])
    if options.top_p is not None and options.top_p < 1:
        ordered = np.sort(scores[scores >= least])[::-1]
        mass = np.cumsum(np.exp(ordered - largest))
        # The token that crosses p stays, so at least one always does.
        last = min(int(np.searchsorted(mass, options.top_p * mass[-1])), len(ordered) - 1)
        least = ordered[last]
    if options.min_p:
        least = max(least, largest + math.log(options.min_p))
    return np.flatnonzero(scores >= least)


def distribution(
    logits: F32,
    seen: Sequence[int],
    params: SamplingParams,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> F64:
    """Return the probabilities that `Sampler.choose` samples by, float64 [vocab].

    Args:
        logits: float32 [vocab].
        seen: Ids that the penalties apply to, as often as they occurred.
        params: How tokens are chosen; at temperature 0 the most probable has all of it.
        allowed: bool [vocab], tokens that may come; all when None.
    """
    scores = _adjusted(logits, seen, params).astype(np.float64)
    if allowed is not None:
        scores[~allowed] = -np.inf
    probabilities = np.zeros_like(scores)
    if params.temperature == 0:
        probabilities[np.argmax(scores)] = 1.0
        return probabilities
    scores *= params.inverse_temperature
    ids = _kept(scores, params)
    weights = np.exp(scores[ids] - scores.max())
    probabilities[ids] = weights / weights.sum()
    return probabilities
