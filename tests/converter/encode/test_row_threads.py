"""Functions of rows on several threads give what they give on one."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rdrr_converter.encode import row_threads
from rdrr_converter.encode.row_threads import by_rows


@pytest.mark.parametrize("rows", [0, 1, 3, 50])
def test_parts_are_joined_in_order_whatever_their_number(rng, monkeypatch, rows):
    monkeypatch.setattr(row_threads, "PART", 64)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    first, second = rng.standard_normal((rows, 16)), rng.standard_normal((rows, 4))
    threads = set()

    def function(a, b):
        threads.add(threading.current_thread().name)
        return a[:, :4] * b, b.sum(axis=1)

    products, sums = by_rows(function, first, second)
    assert np.array_equal(products, first[:, :4] * second)
    assert np.array_equal(sums, second.sum(axis=1))
    assert ("MainThread" in threads) == (rows * 16 < 2 * 64)


def test_an_error_of_a_part_reaches_the_caller(rng, monkeypatch):
    monkeypatch.setattr(row_threads, "PART", 1)

    def function(rows):
        raise ValueError(f"{len(rows)} rows")

    with pytest.raises(ValueError, match="rows"):
        by_rows(function, rng.standard_normal((8, 4)))
