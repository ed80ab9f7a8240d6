"""The check that logits are finite numbers, before a token is chosen from them.

A value that overflows, and a broken weight, make the logits NaN. Any token chosen from those would
be noise, so the generation ends with an error. On the GPU the phases that choose a token mark its
id (phases/snippets/finite.wgsl), so that the check costs no readback of logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import GenerationError

NOT_FINITE = 1 << 31
"""The bit of an id that says that a logit of its row is NaN or infinite, or all are -infinite."""

_HINT = (
    "if activations or the key-value cache are f16, use the hint computePrecision=f32 and the "
    "cache type f32; otherwise check the weights by validating the package with `deep`"
)


def check_logits(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return logits if the largest one of each row is a finite number.

    Args:
        logits: f32 [..., vocab]; -inf rules a token out.

    Raises:
        GenerationError: A row has NaN or infinity, or nothing but -inf.
    """
    if logits.size and not np.isfinite(logits.max(axis=-1)).all():
        raise _not_finite("logits")
    return logits


def check_hidden(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return hidden states if all of them are finite numbers.

    Raises:
        GenerationError: One of them is NaN or infinite.
    """
    if not np.isfinite(rows).all():
        raise _not_finite("hidden states")
    return rows


def check_ids(ids: npt.NDArray[np.uint32] | Sequence[int]) -> None:
    """Raise an error if an id that comes from the GPU is marked.

    Raises:
        GenerationError: The logits that the id was chosen from are not finite.
    """
    if (np.asarray(ids, np.uint32) >= NOT_FINITE).any():
        raise _not_finite("logits")


def _not_finite(what: str) -> GenerationError:
    return GenerationError(f"the model's {what} are not finite numbers", hint=_HINT)
