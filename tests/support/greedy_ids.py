"""Compare ids that another program has generated greedily with the logits of the CPU backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rdrr

MARGIN = 1e-3
"""Least distance of the two largest logits, over the largest, at which ids are compared."""


def check_greedy_ids(package: Path, prompt: Sequence[int], ids: Sequence[int]) -> None:
    """Fail unless each id is the most probable one after those before it, where that is clear.

    Args:
        package: The package.
        prompt: Token ids of the prompt.
        ids: Token ids that were generated from it.
    """
    with rdrr.load(package, backend="cpu") as model:
        logits = model.logits([*prompt, *ids[:-1]])[-len(ids) :]
    largest = np.sort(logits, axis=1)[:, ::-1]
    clear = (largest[:, 0] - largest[:, 1]) > MARGIN * np.abs(largest[:, 0])
    assert clear.mean() > 0.9, "the model is too unsure for a comparison"
    assert logits.argmax(axis=1)[clear].tolist() == np.asarray(ids)[clear].tolist()


def encode(package: Path, text: str) -> list[int]:
    """Return the token ids of a text."""
    with rdrr.load(package, backend="cpu") as model:
        return list(model.encode(text))
