"""The sampling parameters, each declared once with its range and help text.

The command line, the Python API and the samplers on the host and on the GPU read these fields. The
module imports no heavy packages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from rdrr_format.errors import UsageError
from rdrr_format.misuse import explained
from rdrr_format.options import MAX_COUNT, check_count, check_fields, documented, option

MAX_SEED = 2**64 - 1

LARGEST = 1e9
"""Bound of an inverse temperature, a penalty or a bias; larger values would overflow float32."""


NO_MIN_P = 3e38  # no score lies this far below the largest
NO_TOP_K = 3e38  # no vocabulary has as many tokens, so a search for the last one keeps all
NO_TOP_P = 2.0  # more than all probabilities add up to, likewise


def split_biases(words: Sequence[str]) -> dict[int, float]:
    """Parse words of the form `ID=VALUE` as a mapping from token ids to biases.

    Raises:
        UsageError: A word has another form, or an id is given twice.
    """
    biases: dict[int, float] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            token_id, bias = int(key), float(value)
        except ValueError:
            raise UsageError(
                "not a logit bias", expected="ID=VALUE, as in 42=-1.5", found=word
            ) from None
        if token_id in biases:
            raise UsageError("the logit bias of a token is given twice", found=token_id)
        biases[token_id] = bias
    return biases


def _is_a_penalty(value: float) -> bool:
    return abs(value) < LARGEST


@documented
@explained
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters that decide how the next token is chosen."""

    temperature: float = option(
        0.0,
        "Divide the logits by this value; 0 always takes the most probable token.",
        minimum=0,
        expected="a number",
        holds=math.isfinite,
        also_known_as=("temp",),
    )
    top_k: int | None = option(
        None,
        "Sample only from the k most probable tokens; 0 for all tokens.",
        minimum=0,
        maximum=MAX_COUNT,
    )
    top_p: float | None = option(
        None,
        "Sample only from the most probable tokens whose probabilities add up to this value.",
        expected="above 0, at most 1",
        holds=lambda p: 0 < p <= 1,
    )
    min_p: float | None = option(
        None,
        "Sample only from tokens with at least this fraction of the probability of the most "
        "probable token.",
        expected="between 0 and 1",
        holds=lambda p: 0 <= p <= 1,
    )
    repeat_penalty: float | None = option(
        None,
        "Divide the positive logits of tokens that occurred before by this value and multiply the "
        "negative ones; 1 has no effect.",
        expected="above 0",
        holds=lambda penalty: 1 / LARGEST < penalty < LARGEST,
        also_known_as=("repetition_penalty",),
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract this value from a token's logit once for each time that it occurred before.",
        expected="a number",
        holds=_is_a_penalty,
    )
    presence_penalty: float = option(
        0.0,
        "Subtract this value from a token's logit if it occurred before.",
        expected="a number",
        holds=_is_a_penalty,
    )
    logit_bias: Mapping[int, float] = option(
        {},
        "Add a value to the logit of a token.",
        metavar="ID=VALUE",
        expected="numbers",
        holds=lambda biases: all(_is_a_penalty(bias) for bias in biases.values()),
        read_words=split_biases,
    )
    seed: int | None = option(
        None,
        "Random seed for sampling; by default a new one for each generation.",
        minimum=0,
        maximum=MAX_SEED,
    )
    sampled_tokens: int = 0
    """Number of tokens already sampled with the seed, for a sequence that is continued."""

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value is outside its range.
        """
        check_fields(self)
        check_count("sampled_tokens", self.sampled_tokens, minimum=0)

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on the tokens that occurred before."""
        return self.repeat_penalty not in (None, 1.0) or bool(
            self.frequency_penalty or self.presence_penalty
        )

    @property
    def inverse_temperature(self) -> float:
        """The factor on the logits; 1 at temperature 0, where only their order matters."""
        return min(1 / self.temperature, LARGEST) if self.temperature else 1.0

    @property
    def numbers(self) -> dict[str, float]:
        """What the shaders of the sampler read, in the order of their structure `Params`."""
        repeat, top_p = self.repeat_penalty or 1.0, self.top_p or 1.0
        return {
            "inverse_temperature": self.inverse_temperature,
            "repeat": repeat,  # factor on negative logits of tokens that occurred before
            "inverse_repeat": 1 / repeat,  # factor on their positive logits
            "frequency": self.frequency_penalty,
            "presence": self.presence_penalty,
            "top_k": self.top_k or NO_TOP_K,
            "top_p": top_p if top_p < 1 else NO_TOP_P,
            # smallest allowed difference of a score from the largest
            "log_min_p": math.log(self.min_p) if self.min_p else -NO_MIN_P,
        }

    @property
    def is_greedy(self) -> bool:
        """Whether the argmax of the model's own logits is always taken."""
        return self.temperature == 0 and not self.penalizes and not self.logit_bias

    def check_ids(self, vocab_size: int) -> None:
        """Check the token ids of `logit_bias`.

        Raises:
            UsageError: An id is outside the vocabulary.
        """
        wrong = [token_id for token_id in self.logit_bias if not 0 <= token_id < vocab_size]
        if wrong:
            raise UsageError(
                "`logit_bias` has an id outside the vocabulary",
                expected=f"below {vocab_size}",
                found=wrong[0],
            )


class SamplingKeywords(TypedDict, total=False):
    """The options of `SamplingParams` as keyword arguments, for annotations."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
