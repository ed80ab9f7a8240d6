"""How the next token is chosen, and the choice on the host.

Order of the steps: repetition penalty, presence and frequency penalties, bias, mask, temperature,
top-k, top-p, min-p, draw. Tokens exactly as likely as the last one kept are kept too. The draw is
the largest of score + Gumbel noise, see `rdrr_runtime.sampling.randomness`. `phases/sample.py`
takes the same steps with the same random numbers on the GPU, so one seed gives one text on both,
except where two candidates lie within f32's rounding of each other. Greedy decoding comes to
neither: its argmax is part of the pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import UsageError

from rdrr_runtime.sampling.randomness import fresh_seed, gumbel, random_words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


LARGEST = 1e9
"""Of a temperature's inverse, a penalty or a bias: beyond it f32 would overflow."""


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen.

    Attributes:
        temperature: Divides the logits; 0 means greedy.
        top_k: Keep the k likeliest tokens; None or 0 for all.
        top_p: Keep the likeliest tokens whose probabilities together reach p.
        min_p: Keep tokens at least min_p times as likely as the likeliest.
        repeat_penalty: Logits of tokens seen before are divided (positive) or multiplied
            (negative) by it (Keskar et al. 2019); 1 or None for none.
        seed: Of the draws; None for a fresh one.
        frequency_penalty: Taken off a token's logit for each time that it was there before, in the
            prompt or in the text.
        presence_penalty: Taken off once if it was there at all.
        logit_bias: Added to the logits of these ids.
        drawn: Draws of the seed that were made before, where a text goes on.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    drawn: int = 0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: A value outside its range.
        """
        checks = {
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "top_k": (self.top_k is None or self.top_k >= 0, "0 or more"),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (self.min_p is None or 0 <= self.min_p <= 1, "between 0 and 1"),
            "repeat_penalty": (
                self.repeat_penalty is None or 1 / LARGEST < self.repeat_penalty < LARGEST,
                "above 0",
            ),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
            "drawn": (self.drawn >= 0, "0 or more"),
            "frequency_penalty": (abs(self.frequency_penalty) < LARGEST, "a number"),
            "presence_penalty": (abs(self.presence_penalty) < LARGEST, "a number"),
            "logit_bias": (all(abs(one) < LARGEST for one in self.logit_bias.values()), "numbers"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                raise UsageError(
                    f"{name} is out of range", expected=expected, found=getattr(self, name)
                )

    @property
    def penalizes(self) -> bool:
        """Whether it matters which tokens were there before."""
        return self.repeat_penalty not in (None, 1.0) or bool(
            self.frequency_penalty or self.presence_penalty
        )

    @property
    def inverse_temperature(self) -> float:
        """What logits are multiplied by; 1 where the largest wins anyway."""
        return min(1 / self.temperature, LARGEST) if self.temperature else 1.0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken and nothing changes the logits before."""
        return self.temperature == 0 and not self.penalizes and not self.logit_bias

    def check_ids(self, vocab_size: int) -> None:
        """Check the ids of the bias.

        Raises:
            UsageError: One outside the vocabulary.
        """
        wrong = [token_id for token_id in self.logit_bias if not 0 <= token_id < vocab_size]
        if wrong:
            raise UsageError(
                "logit_bias has an id outside the vocabulary",
                expected=f"below {vocab_size}",
                found=wrong[0],
            )


class Sampler:
    """Draws tokens; counts the draws, so that one seed gives one text.

    Args:
        options: How to choose.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._seed = fresh_seed() if options.seed is None else options.seed
        self._draws = options.drawn

    def choose(
        self, logits: F32, seen: Sequence[int] = (), allowed: npt.NDArray[np.bool_] | None = None
    ) -> int:
        """One token id.

        Args:
            logits: float32 [vocab].
            seen: Ids that the penalties apply to, as often as they were there.
            allowed: bool [vocab], tokens that may be drawn; all when None.
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
        noise = gumbel(random_words(self._seed, self._draws, ids))
        self._draws += 1
        return int(ids[np.argmax(scores[ids] + noise)])


def _adjusted(logits: F32, seen: Sequence[int], options: SamplingOptions) -> F32:
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


def _kept(scores: F64, options: SamplingOptions) -> npt.NDArray[np.intp]:
    """Ids of the tokens that may be drawn: those at or above the highest of three thresholds."""
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


def distribution(logits: F32, seen: Sequence[int], options: SamplingOptions) -> F64:
    """Probabilities that `Sampler.choose` draws by, float64 [vocab].

    Args:
        logits: float32 [vocab].
        seen: Ids that the penalties apply to, as often as they were there.
        options: How tokens are chosen; at temperature 0 the likeliest has all of it.
    """
    scores = _adjusted(logits, seen, options).astype(np.float64)
    shares = np.zeros_like(scores)
    if options.temperature == 0:
        shares[np.argmax(scores)] = 1.0
        return shares
    scores *= options.inverse_temperature
    ids = _kept(scores, options)
    weights = np.exp(scores[ids] - scores.max())
    shares[ids] = weights / weights.sum()
    return shares
