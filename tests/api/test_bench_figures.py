"""Figures of `rdrr bench`: spreads and percentiles."""

from __future__ import annotations

import pytest
from rdrr.bench.figures import Spread, percentile


def test_a_spread_is_the_median_between_the_extremes():
    spread = Spread.of([4.0, 1.0, 2.0])
    assert spread == Spread(median=2.0, least=1.0, most=4.0)
    assert spread.show(1) == "2.0 (1.0 to 4.0)"


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (95, 95), (99, 99), (100, 100)])
def test_percentiles_of_a_hundred_values_are_their_ranks(percent, expected):
    assert percentile(list(range(100, 0, -1)), percent) == expected
    assert percentile([7.0], percent) == 7.0


def test_a_percentile_between_two_ranks_is_the_upper_one():
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 67) == 3.0
