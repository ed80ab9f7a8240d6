"""Reading ahead does not change what is read, at any position in a file."""

from __future__ import annotations

import mmap

import numpy as np
from rdrr_converter.checkpoint.source import read_ahead


def test_read_ahead_advice_stays_within_the_file(tmp_path, rng, monkeypatch):
    content = rng.integers(0, 256, 50_000, dtype=np.uint8)
    content.tofile(tmp_path / "file")
    asked = []

    class Watched(mmap.mmap):
        def madvise(self, advice, start, length):
            asked.append((start, length))
            return super().madvise(advice, start, length)

    monkeypatch.setattr(mmap, "mmap", Watched)
    for _ in range(50):
        offset, columns = int(rng.integers(0, 20_000)), int(rng.integers(1, 90))
        rows = int(rng.integers(1, 300))
        array = np.memmap(tmp_path / "file", np.uint8, "r", offset, (rows, columns))
        first, end = sorted(rng.integers(0, rows + 1, 2).tolist())
        part = array[first:end]
        asked.clear()
        assert read_ahead(part) is part
        np.testing.assert_array_equal(
            part, content[offset:][: rows * columns].reshape(rows, columns)[first:end]
        )
        for start, length in asked:
            assert start % mmap.PAGESIZE == 0
            assert 0 < length <= part.nbytes + mmap.PAGESIZE
        assert bool(asked) == (first < end)


def test_arrays_that_are_not_mapped_or_not_contiguous_are_returned_unchanged(tmp_path):
    np.zeros(20_000, np.uint8).tofile(tmp_path / "file")
    array = np.memmap(tmp_path / "file", np.uint8, "r", 0, (100, 200))
    for part in (array[:, :50], array[::2], np.zeros((3, 4)), np.asarray(array)[1:2]):
        assert read_ahead(part) is part
