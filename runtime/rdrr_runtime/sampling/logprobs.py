"""Log-probabilities of tokens under the model, before penalties, bias and temperature."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rdrr_format.options import check_count

MAX_TOP = 20
"""Most alternatives that can be recorded for a token."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probabilities recorded for one token.

    Attributes:
        token_id: The token that was chosen.
        logprob: Natural logarithm of its probability.
        top: (id, logprob) of the most probable tokens, in order of falling probability; equally
            probable tokens in order of their ids.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass
class Logprobs:
    """A request for log-probabilities, which a generation fills while it runs.

    Attributes:
        top: Number of most probable tokens to record besides the chosen one, 0 to `MAX_TOP`.
        tokens: One entry for each generated token.
    """

    top: int
    tokens: list[TokenLogprobs] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the range.

        Raises:
            UsageError: `top` is negative or above `MAX_TOP`.
        """
        check_count("logprobs", self.top, minimum=0, maximum=MAX_TOP)


def token_logprobs(logits: npt.NDArray[np.float32], token_id: int, top: int) -> TokenLogprobs:
    """Return the log-probabilities to record for one token, computed on the host.

    Args:
        logits: float32 [vocab].
        token_id: The token that was chosen.
        top: Number of most probable tokens to record.
    """
    scores = logits.astype(np.float64)
    largest = scores.max()
    scores -= largest + np.log(np.exp(scores - largest).sum())
    best = np.argsort(-scores, kind="stable")[:top]
    return TokenLogprobs(
        token_id,
        float(scores[token_id]),
        tuple((int(candidate), float(scores[candidate])) for candidate in best),
    )
