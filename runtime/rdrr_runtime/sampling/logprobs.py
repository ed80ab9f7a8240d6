"""Log-probabilities of tokens under the model, before penalties, bias and temperature."""

from __future__ import annotations

from collections.abc import Sequence
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


def record_bytes(top: int) -> int:
    """Return the bytes of the record of a token on the GPU, see `phases/sampling/logprobs.py`."""
    return 8 + 8 * top


def unpack(
    ids: Sequence[int], records: npt.NDArray[np.uint8], *, vocabulary: int, top: int
) -> list[TokenLogprobs]:
    """Decode the records of sampled ids.

    Args:
        ids: Sampled ids, in the order of the records.
        records: Bytes of the records, one for each id.
        vocabulary: Vocabulary size; if it is less than `top`, the surplus entries are dropped.
        top: Number of most probable tokens in a record.
    """
    words = records.view(np.uint32).reshape(len(ids), 2 + 2 * top)
    numbers = words.view(np.float32).astype(np.float64)
    return [
        TokenLogprobs(
            token_id,
            float(values[1] - values[0]),
            tuple(
                (int(bits[at + 1]), float(values[at] - values[0]))
                for at in range(2, 2 + 2 * top, 2)
                if bits[at + 1] < vocabulary
            ),
        )
        for token_id, bits, values in zip(ids, words, numbers, strict=True)
    ]
