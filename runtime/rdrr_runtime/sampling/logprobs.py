"""Log-probabilities of tokens as the model gives them: before penalties, bias and temperature."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rdrr_format.options import check_count

MAX_TOP = 20


@dataclass(frozen=True)
class TokenLogprobs:
    """What the model thought where one token was chosen.

    Attributes:
        token_id: The token chosen.
        logprob: Natural logarithm of its probability.
        top: (id, logprob) of the most probable tokens, the most probable first, equal ones by id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class Logprobs:
    """A wish for log-probabilities, filled while a generation runs.

    Attributes:
        top: How many of the most probable tokens are recorded besides the one chosen, 0 to
            `MAX_TOP`.
        tokens: One entry for each new token.
    """

    top: int
    tokens: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the range.

        Raises:
            UsageError: More than `MAX_TOP`.
        """
        check_count("logprobs", self.top, minimum=0, maximum=MAX_TOP)


def token_logprobs(logits: npt.NDArray[np.float32], token_id: int, top: int) -> TokenLogprobs:
    """The log-probabilities of one row of logits, on the host."""
    scores = logits.astype(np.float64)
    largest = scores.max()
    scores -= largest + np.log(np.exp(scores - largest).sum())
    best = np.argsort(-scores, kind="stable")[:top]
    return TokenLogprobs(
        token_id, float(scores[token_id]), tuple((int(one), float(scores[one])) for one in best)
    )
