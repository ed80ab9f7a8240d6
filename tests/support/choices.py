"""Compare greedy ids that two kinds of passes chose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rdrr_manifests.package import Package
from rdrr_runtime.reference.backend import CpuBackend

TIE = 1e-5
"""Difference of two logits that rounding may hide, as a fraction of the largest logit.

Differences between passes of one row and of several were 4e-6 at most in 1,440 rows of random
models. With that one sequence of 40 ids in about 10,000 holds such a tie.
"""


def assert_same_ids(
    found: Sequence[int], expected: Sequence[int], prompt: Sequence[int], package: Package
) -> None:
    """Assert that two continuations of a prompt are the same, except behind a tie.

    Kernels of one row and of several add in different orders, so they may choose differently where
    two logits are equal up to rounding. The ids after that belong to different texts.

    Args:
        found: Ids that were chosen.
        expected: Ids that should have been chosen.
        prompt: The ids that both continue.
        package: The model, of which the reference computes the logits at the first difference.
    """
    pairs = enumerate(zip(found, expected, strict=False))
    place = next((at for at, (ours, theirs) in pairs if ours != theirs), None)
    if place is None:
        assert list(found) == list(expected)
        return
    ids = [*prompt, *expected[:place]]
    logits = CpuBackend(package, context=len(ids)).logits(ids, 0)[0]
    gap = abs(logits[found[place]] - logits[expected[place]]) / np.abs(logits).max()
    assert gap < TIE, (
        f"id {place} is {found[place]} instead of {expected[place]}, although their logits differ "
        f"by {gap:.1e} of the largest: {list(found)} instead of {list(expected)}"
    )
