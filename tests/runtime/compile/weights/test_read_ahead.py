"""Reads run in threads a bounded number ahead, and their results come in order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rdrr_format.errors import ShardError
from rdrr_runtime.compile.weights import read_ahead
from rdrr_runtime.compile.weights.read_ahead import reading_ahead
from support.deadlines import HANGS


def numbered(count: int, log: list[int] | None = None):
    def read(number: int):
        if log is not None:
            log.append(number)
        return np.full(4, number, np.uint8)

    return [lambda number=number: read(number) for number in range(count)]


def test_results_come_in_order_whichever_read_ends_first(monkeypatch):
    monkeypatch.setattr(read_ahead.os, "cpu_count", lambda: 2)
    last = threading.Event()

    def late():
        assert last.wait(HANGS)
        return np.zeros(1, np.uint8)

    def early():
        last.set()
        return np.ones(1, np.uint8)

    with reading_ahead([late, early]) as contents:
        assert [int(content[0]) for content in contents] == [0, 1]


def test_reads_begin_a_bounded_number_ahead_of_their_use(monkeypatch):
    monkeypatch.setattr(read_ahead, "READS_AHEAD", 3)
    log: list[int] = []
    with reading_ahead(numbered(40, log)) as contents:
        for number in range(10):
            assert int(next(contents)[0]) == number
            assert max(log) <= number + 3
    assert max(log) <= 9 + 3


def test_an_error_comes_where_its_result_would_and_ends_the_reading():
    reads = numbered(60)

    def fail():
        raise ShardError("shard is too short", where="here")

    reads[5] = fail
    seen = []
    with pytest.raises(ShardError, match="too short"), reading_ahead(reads) as contents:
        seen.extend(int(content[0]) for content in contents)
    with reading_ahead(reads) as contents:
        assert [int(next(contents)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read_")]


def test_a_mapped_file_has_the_same_bytes(tmp_path, rng):
    data = rng.integers(0, 256, 3 * 4096 + 17, dtype=np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())

    def read():
        return np.memmap(tmp_path / "file", np.uint8, "r").reshape(1, -1)

    with reading_ahead([read]) as contents:
        np.testing.assert_array_equal(next(contents)[0], data)
