"""Tests of the upload of weights to the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.weights.packing import upload_weight
from support.gpu import random_tensor


def test_rows_of_unquantized_values_are_padded_to_sixteen_bytes(bench, rng) -> None:
    raw, _ = random_tensor(rng, "F16", Layout.ROW, (2, 9))
    weight = upload_weight(bench.arena, DTYPES["F16"], Layout.ROW, (2, 9), raw, "w")
    rows = bench.device.read(weight.parts[0].slice).reshape(2, 32)
    assert np.array_equal(rows[:, :18], raw.reshape(2, 18))
    assert not rows[:, 18:].any()


def test_a_tensor_in_chunks_gives_the_same_weight_as_in_one_piece(bench, rng) -> None:
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (40, 64))
    rows = raw.reshape(40, -1)
    chunks = (rows[first : first + 7].tobytes() for first in range(0, 40, 7))
    whole = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (40, 64), raw, "w")
    parts = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (40, 64), chunks, "w")
    first, second = (bench.device.read(array.parts[0].slice) for array in (whole, parts))
    assert np.array_equal(first, second)


def test_flat_blocks_take_at_most_5_percent_more_memory_than_stored(bench, rng) -> None:
    raw, _ = random_tensor(rng, "Q4_K", Layout.FLAT, (5, 384))
    weight = upload_weight(bench.arena, DTYPES["Q4_K"], Layout.FLAT, (5, 384), raw, "w")
    assert weight.layout is Layout.ROW
    assert weight.size <= 1.05 * raw.size  # seven and a half blocks


@pytest.mark.parametrize(("dtype", "k"), [("Q4_K", 288), ("Q6_K", 352), ("Q8_0", 80)])
def test_flat_blocks_that_cross_rows_within_a_unit_are_refused(bench, rng, dtype, k) -> None:
    raw, _ = random_tensor(rng, dtype, Layout.FLAT, (4, k))
    with pytest.raises(FormatError, match="cross rows"):
        upload_weight(bench.arena, DTYPES[dtype], Layout.FLAT, (4, k), raw, "w")


@pytest.mark.parametrize("change", ["a block is missing", "a block is incomplete"])
def test_truncated_flat_blocks_are_refused(bench, rng, change) -> None:
    raw, _ = random_tensor(rng, "Q4_K", Layout.FLAT, (5, 384))
    cut = raw[: -(144 if change == "a block is missing" else 3)]
    message = "is truncated" if change == "a block is missing" else "does not match the shape"
    with pytest.raises(FormatError, match=message):
        upload_weight(bench.arena, DTYPES["Q4_K"], Layout.FLAT, (5, 384), cut, "w")


@pytest.mark.parametrize(("cut", "message"), [(34, "is truncated"), (3, "does not match")])
def test_a_truncated_tensor_is_refused(bench, rng, cut, message) -> None:
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (4, 32))
    with pytest.raises(FormatError, match=message):
        upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (4, 32), raw[:-cut], "w")


def test_a_type_without_kernels_is_refused(bench) -> None:
    with pytest.raises(FormatError, match="no kernel reads"):
        upload_weight(bench.arena, DTYPES["I64"], Layout.ROW, (1, 32), bytes(256), "w")


@pytest.mark.parametrize("dtype", ["Q6_K", "F16"])
def test_uploads_are_written_in_pieces_of_bounded_size(bench, rng, dtype, monkeypatch) -> None:
    shape, limit = (64, 512), 8192
    monkeypatch.setattr("rdrr_runtime.phases.weights.packing.CHUNK_BYTES", limit)
    monkeypatch.setattr("rdrr_runtime.phases.weights.packing._HOST_BYTES", limit)
    written = []
    write = type(bench.arena).write

    def watched(arena, target, data, offset=0):
        written.append(memoryview(data).nbytes)
        write(arena, target, data, offset)

    monkeypatch.setattr(type(bench.arena), "write", watched)
    raw, _ = random_tensor(rng, dtype, Layout.ROW, shape)
    upload_weight(bench.arena, DTYPES[dtype], Layout.ROW, shape, raw, "w")
    assert max(written) <= limit
    assert sum(written) >= raw.size
