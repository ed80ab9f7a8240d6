"""Tests of limits on values, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.phases.rows.limit import limit
from support.gpu import normal

LIMITS = np.array([-0.5, 0.25, -3e38, 0.125], np.float32)


@pytest.mark.parametrize("first", [0, 2])
def test_values_are_limited_on_both_sides(bench, rng, first) -> None:
    x, y = normal(rng, 3, 260), bench.poisoned(3, 260)
    ctx, limits = bench.context(3), bench.upload(LIMITS)
    bench.run(limit(ctx, bench.upload(x), limits, y, width=260, first=first, label="t"), 3)
    expected = np.clip(x, *LIMITS[first : first + 2])
    assert np.array_equal(bench.download(y, 3, 260), expected)


def test_limits_beyond_their_buffer_are_refused(bench) -> None:
    x, y, limits = bench.poisoned(1, 8), bench.poisoned(1, 8), bench.upload(LIMITS)
    assert limit(bench.context(1), x, limits, y, width=8, first=2, label="t")
    with pytest.raises(FormatError, match="limits"):
        limit(bench.context(1), x, limits, y, width=8, first=3, label="t")
