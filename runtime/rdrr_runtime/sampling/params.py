"""The parameters by which the next token is chosen, each declared once.

The command line, the Python API and the samplers on host and GPU read these fields. Nothing heavy
is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from rdrr_format.errors import UsageError
from rdrr_format.options import MAX_COUNT, check_count, check_fields, documented, option

MAX_SEED = 2**64 - 1

LARGEST = 1e9
"""Of a temperature's inverse, a penalty or a bias: beyond it f32 would overflow."""


def split_biases(words: Sequence[str]) -> dict[int, float]:
    """Read `ID=VALUE` words as a mapping.

    Raises:
        UsageError: Another word, or an id that is given twice.
    """
    biases: dict[int, float] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            token_id, bias = int(key), float(value)
        except ValueError:
            raise UsageError("not a bias", expected="ID=VALUE, as in 42=-1.5", found=word) from None
        if token_id in biases:
            raise UsageError("bias of a token given twice", found=token_id)
        biases[token_id] = bias
    return biases


def _is_a_penalty(value: float) -> bool:
    return abs(value) < LARGEST


@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen."""

    temperature: float = option(
        0.0,
        "Divide the logits by this; 0 takes the most probable token.",
        minimum=0,
        expected="a number",
        holds=math.isfinite,
    )
    top_k: int | None = option(
        None, "Sample among the k most probable tokens; 0 for all.", minimum=0, maximum=MAX_COUNT
    )
    top_p: float | None = option(
        None,
        "Sample among the most probable tokens that together reach this probability.",
        expected="above 0, at most 1",
        holds=lambda p: 0 < p <= 1,
    )
    min_p: float | None = option(
        None,
        "Sample among tokens at least this many times as probable as the most probable one.",
        expected="between 0 and 1",
        holds=lambda p: 0 <= p <= 1,
    )
    repeat_penalty: float | None = option(
        None,
        "Divide positive logits of earlier tokens by this, and multiply negative ones; 1 changes "
        "nothing.",
        expected="above 0",
        holds=lambda penalty: 1 / LARGEST < penalty < LARGEST,
    )
    frequency_penalty: float = option(
        0.0,
        "Subtract this from a token's logit for each time that it occurred before.",
        expected="a number",
        holds=_is_a_penalty,
    )
    presence_penalty: float = option(
        0.0,
        "Subtract this from a token's logit if it occurred before.",
        expected="a number",
        holds=_is_a_penalty,
    )
    logit_bias: Mapping[int, float] = option(
        {},
        "Add a value to the logit of a token id.",
        metavar="ID=VALUE",
        expected="numbers",
        holds=lambda biases: all(_is_a_penalty(one) for one in biases.values()),
        read_words=split_biases,
    )
    seed: int | None = option(
        None, "Random seed for sampling; a fresh one unless given.", minimum=0, maximum=MAX_SEED
    )
    drawn: int = 0
    """Tokens that were sampled with the seed before, where a sequence goes on."""

    def __post_init__(self) -> None:
        """Check each value.

        Raises:
            UsageError: A value outside its range.
        """
        check_fields(self)
        check_count("drawn", self.drawn, minimum=0)

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
        """Whether the most probable token is always taken and nothing changes the logits before."""
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
