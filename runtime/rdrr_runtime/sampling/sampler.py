"""Sample tokens on the host with the parameters of `SamplingParams`.

The steps, in order: repetition penalty, presence and frequency penalties, bias, mask, temperature,
top-k, top-p, min-p, choice. Tokens exactly as probable as the least probable token kept are kept
too. The choice is the argmax of score + Gumbel noise, see `rdrr_runtime.sampling.randomness`.
`phases/sampling/sample.py` takes the same steps with the same random numbers on the GPU, so the
same seed gives the same sequence on both, unless two candidates differ by no more than float32
rounding. Greedy decoding needs neither sampler: its argmax is part of the pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rdrr_runtime.sampling.finite import check_logits
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.randomness import fresh_seed, gumbel, random_words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class Sampler:
    """A sampler of one sequence.

    It counts the tokens that it samples, since their random numbers depend on that count.

    Args:
        options: Sampling parameters.
    """

    def __init__(self, options: SamplingParams) -> None:
        self._options = options
        self._seed = fresh_seed() if options.seed is None else options.seed
        self._steps = options.sampled_tokens

    def choose(
        self, logits: F32, seen: Sequence[int] = (), allowed: npt.NDArray[np.bool_] | None = None
    ) -> int:
        """Choose the next token and return its id.

        Args:
            logits: float32 [vocab].
            seen: Ids that the penalties apply to, each as often as it occurred.
            allowed: bool [vocab], tokens that may be sampled; all when None.

        Raises:
            GenerationError: The logits are not finite.
        """
        options = self._options
        scores = _with_penalties_and_bias(logits, seen, options)
        if allowed is not None:
            scores[~allowed] = -np.inf
        if options.temperature == 0:
            return int(np.argmax(scores))
        # The GPU multiplies by the inverse in float32; dividing would round differently.
        scores *= np.float32(options.inverse_temperature)
        ids = _candidates(scores.astype(np.float64), options)
        noise = gumbel(random_words(self._seed, self._steps, ids))
        self._steps += 1
        return int(ids[np.argmax(scores[ids] + noise)])


def _with_penalties_and_bias(logits: F32, seen: Sequence[int], options: SamplingParams) -> F32:
    """Return the logits after penalties and bias, float32 [vocab]."""
    check_logits(logits)
    scores = logits.astype(np.float32)
    if options.penalizes and len(seen):
        ids, counts = np.unique(np.asarray(seen), return_counts=True)
        is_text = ids < len(scores)  # tokens of images have ids behind the vocabulary
        ids, counts = ids[is_text], counts[is_text]
        repeat = np.float32(options.repeat_penalty or 1.0)
        values = scores[ids]
        values = np.where(values > 0, values / repeat, values * repeat)
        values -= np.float32(options.presence_penalty)
        scores[ids] = values - counts.astype(np.float32) * np.float32(options.frequency_penalty)
    for token_id, bias in options.logit_bias.items():
        scores[token_id] += np.float32(bias)
    return scores


def _candidates(scores: F64, options: SamplingParams) -> npt.NDArray[np.intp]:
    """Return the ids that may be sampled: scores at or above the top-k, top-p, min-p thresholds."""
    threshold, largest = np.finfo(np.float64).min, scores.max()
    if options.top_k and options.top_k < len(scores):
        threshold = max(threshold, np.partition(scores, -options.top_k)[-options.top_k])
    if options.top_p is not None and options.top_p < 1:
        ordered = np.sort(scores[scores >= threshold])[::-1]
        cumulative = np.cumsum(np.exp(ordered - largest))
        # The token that crosses p is kept, so there is always at least one candidate.
        crossing = int(np.searchsorted(cumulative, options.top_p * cumulative[-1]))
        threshold = ordered[min(crossing, len(ordered) - 1)]
    if options.min_p:
        threshold = max(threshold, largest + math.log(options.min_p))
    return np.flatnonzero(scores >= threshold)


def distribution(
    logits: F32,
    seen: Sequence[int],
    params: SamplingParams,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> F64:
    """Return the probabilities with which `Sampler.choose` samples, float64 [vocab].

    Args:
        logits: float32 [vocab].
        seen: Ids that the penalties apply to, each as often as it occurred.
        params: Sampling parameters; at temperature 0 the most probable token has probability 1.
        allowed: bool [vocab], tokens that may be sampled; all when None.
    """
    scores = _with_penalties_and_bias(logits, seen, params).astype(np.float64)
    if allowed is not None:
        scores[~allowed] = -np.inf
    probabilities = np.zeros_like(scores)
    if params.temperature == 0:
        probabilities[np.argmax(scores)] = 1.0
        return probabilities
    scores *= params.inverse_temperature
    ids = _candidates(scores, params)
    weights = np.exp(scores[ids] - scores.max())
    probabilities[ids] = weights / weights.sum()
    return probabilities
