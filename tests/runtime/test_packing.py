"""Weights on their way to the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.packing import pack_rows, upload_weight, words_per_row
from support.gpu import random_tensor


def test_scales_are_widened_and_the_rest_is_kept(rng) -> None:
    block = rng.integers(0, 256, (3, 2 * 210), dtype=np.uint8)
    block[:, 208:210] = np.array([1.5e-7], "<f2").view(np.uint8)  # subnormal in f16
    words = pack_rows(DTYPES["Q6_K"], block)
    assert words.shape == (3, 108)
    assert np.array_equal(words[:, :52].view(np.uint8), block[:, :208])
    assert np.array_equal(words[:, 52].view("<f4"), np.full(3, np.float16(1.5e-7), "<f4"))
    assert not words[:, 53].any()


def test_rows_of_scalars_are_padded_to_sixteen_bytes() -> None:
    words = pack_rows(DTYPES["F16"], np.full((2, 2 * 9), 0xFF, np.uint8))
    assert words.shape == (2, 8)
    assert not words[:, 5:].any()


def test_chunks_give_the_same_weight_as_the_whole(bench, rng) -> None:
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (40, 64))
    rows = raw.reshape(40, -1)
    chunks = (rows[first : first + 7].tobytes() for first in range(0, 40, 7))
    whole = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (40, 64), raw, "w")
    parts = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (40, 64), chunks, "w")
    first, second = (bench.device.read(one.parts[0].slice) for one in (whole, parts))
    assert np.array_equal(first, second)


def test_flat_blocks_in_whole_rows_are_rows(bench, rng) -> None:
    raw, _ = random_tensor(rng, "Q4_K", Layout.FLAT, (4, 256))
    assert (
        upload_weight(bench.arena, DTYPES["Q4_K"], Layout.FLAT, (4, 256), raw, "w").layout
        is Layout.ROW
    )


def test_flat_blocks_that_cross_rows_take_no_more_than_they_are(bench, rng) -> None:
    raw, _ = random_tensor(rng, "Q4_K", Layout.FLAT, (5, 384))
    chunks = (raw[first : first + 3 * 144].tobytes() for first in range(0, raw.size, 3 * 144))
    weight = upload_weight(bench.arena, DTYPES["Q4_K"], Layout.FLAT, (5, 384), chunks, "w")
    assert weight.size == raw.size == 8 * 144  # seven and a half blocks
    assert np.array_equal(bench.device.read(weight.parts[0].slice).view(np.uint8), raw)


@pytest.mark.parametrize(("dtype", "k"), [("Q4_K", 288), ("Q6_K", 320), ("Q8_0", 80)])
def test_flat_blocks_that_cross_rows_within_a_group_are_refused(bench, rng, dtype, k) -> None:
    raw, _ = random_tensor(rng, dtype, Layout.FLAT, (4, k))
    with pytest.raises(FormatError, match="cross rows"):
        upload_weight(bench.arena, DTYPES[dtype], Layout.FLAT, (4, k), raw, "w")


@pytest.mark.parametrize("change", ["an end too early", "a block in pieces"])
def test_missing_bytes_of_flat_blocks_are_refused(bench, rng, change) -> None:
    raw, _ = random_tensor(rng, "Q4_K", Layout.FLAT, (5, 384))
    cut = raw[: -(144 if change == "an end too early" else 3)]
    message = "ends early" if change == "an end too early" else "no whole blocks"
    with pytest.raises(FormatError, match=message):
        upload_weight(bench.arena, DTYPES["Q4_K"], Layout.FLAT, (5, 384), cut, "w")


@pytest.mark.parametrize(("cut", "message"), [(34, "ends early"), (3, "do not fit")])
def test_missing_bytes_are_refused(bench, rng, cut, message) -> None:
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (4, 32))
    with pytest.raises(FormatError, match=message):
        upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (4, 32), raw[:-cut], "w")


def test_a_type_without_kernels_is_refused() -> None:
    with pytest.raises(FormatError, match="no kernel reads"):
        words_per_row(DTYPES["I64"], 32)
