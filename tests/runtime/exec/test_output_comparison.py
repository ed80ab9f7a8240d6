"""How far results may be from each other to be taken for the same."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_runtime.exec.output_comparison import INT8_TOLERANCE, distance

REFERENCE = np.array([1.0, -4.0, 2.0], np.float32)


@pytest.mark.parametrize(("change", "expected"), [(0.0, 0.0), (0.5, 0.125), (-4.0, 1.0)])
def test_the_distance_is_relative_to_the_largest_magnitude(change, expected):
    assert distance(REFERENCE, REFERENCE + np.array([0, change, 0], np.float32)) == expected


def test_arrays_of_zeros_are_equal():
    assert distance(np.zeros(3, np.float32), np.zeros(3, np.float32)) == 0.0


@pytest.mark.parametrize(("value", "agrees"), [(np.nan, False), (np.inf, False), (-4.0, True)])
def test_values_that_are_not_finite_do_not_agree(value, agrees):
    output = np.array([1.0, value, 2.0], np.float32)
    assert (distance(REFERENCE, output) <= INT8_TOLERANCE) == agrees
