"""Tests of the quantization of a small batch to int8 against the torch reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.products import quantize_small_batch as module
from rdrr_runtime.phases.products.fusion import AttentionSplits, RowNorm
from rdrr_runtime.phases.products.quantize_small_batch import (
    UNIT,
    quantize_small_batch,
    small_batch_bytes,
    units_of,
)
from rdrr_runtime.reference import rows as ops
from support.gpu import F32, Bench, normal

EPS = 1e-5


def quantized(
    bench: Bench,
    x: F32,
    k: int,
    *,
    per_row: int = 1,
    before=None,
    rows: int = 3,
    halves=False,
    grid: Grid | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes [vectors, elements], and scales and scaled sums [vectors, elements / 32]."""
    y = bench.upload(np.full(small_batch_bytes(rows * per_row, k), 0xFF, np.uint8))
    phases = quantize_small_batch(
        replace(bench.context(rows), grid=grid),
        bench.upload(x),
        y,
        k=k,
        before=before,
        per_row=per_row,
        halves=halves,
        label="t",
    )
    bench.run(phases, rows)
    return unpacked(bench, y, rows * per_row, units_of(k))


def unpacked(
    bench: Bench, y: BufferSlice, vectors: int, units: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    raw = bench.device.read(y).view(np.uint8).reshape(vectors, 5, units, 16)
    codes = raw[:, :4].view(np.int8).transpose(0, 2, 1, 3).reshape(vectors, UNIT * units)
    numbers = np.ascontiguousarray(raw[:, 4]).view(np.float32).reshape(vectors, 2 * units, 2)
    return codes.astype(np.float64), numbers[..., 0], numbers[..., 1]


def check(quantized_rows: tuple[np.ndarray, ...], expected: np.ndarray) -> None:
    """Check that each value is rounded to the nearest code, and that padding is zero."""
    codes, scales, sums = quantized_rows
    vectors, k = expected.shape
    wide = np.zeros(codes.shape)
    wide[:, :k] = expected
    groups = wide.reshape(vectors, -1, 32)
    np.testing.assert_allclose(scales, np.abs(groups).max(2) / 127, rtol=1e-5)
    by_group = codes.reshape(groups.shape)
    assert (np.abs(by_group - groups / np.maximum(scales, 1e-30)[..., None]) < 0.501).all()
    assert not codes[:, k:].any()
    np.testing.assert_allclose(sums, scales * by_group.sum(2), rtol=1e-6)


@pytest.mark.parametrize(("k", "per_row"), [(4, 1), (36, 1), (100, 3), (320, 2), (2048, 1)])
def test_vectors_are_rounded_to_the_nearest_codes(any_bench, rng, k, per_row) -> None:
    x = normal(rng, 3 * per_row, k)
    check(quantized(any_bench, x, k, per_row=per_row), x.astype(np.float64))


@pytest.mark.parametrize("k", [36, 288, 2048, 2884])
@pytest.mark.parametrize("threads", [512, 32])  # 32 threads take several iterations
def test_a_norm_is_computed_first(any_bench, rng, monkeypatch, threads, k) -> None:
    monkeypatch.setattr(module, "NORM_WORKGROUP", threads)
    x, gain = 3 * normal(rng, 3, k), normal(rng, k)
    expected = ops.rms_norm(torch.from_numpy(x), torch.from_numpy(gain), EPS, 1.0).numpy()
    before = RowNorm(any_bench.upload(gain), EPS, 1.0)
    check(quantized(any_bench, x, k, before=before), expected.astype(np.float64))


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_each_16_elements_may_have_a_scale(any_bench, rng, normed) -> None:
    x, gain = 3 * normal(rng, 3, 100), normal(rng, 100)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS)
    expected = x / root * (1 + gain) if normed else x.astype(np.float64)
    before = RowNorm(any_bench.upload(gain), EPS, 1.0) if normed else None
    codes, *halves = quantized(any_bench, x, 100, before=before, halves=True)
    scales = np.stack(halves, -1).reshape(3, -1, 1)
    groups = np.pad(expected, ((0, 0), (0, 28))).reshape(3, -1, 16)
    np.testing.assert_allclose(scales, np.abs(groups).max(2, keepdims=True) / 127, rtol=1e-5)
    codes = codes.reshape(groups.shape)
    assert (np.abs(codes - groups / np.maximum(scales, 1e-30)) < 0.501).all()


@pytest.mark.parametrize(
    ("heads", "head_dim", "splits", "grid"),
    [
        (5, 48, 4, None),
        (8, 64, 1, None),
        (3, 80, 16, None),
        (5, 48, 3, Grid(128, 2)),
        (8, 64, 4, Grid(128, 2)),
    ],
)
def test_the_splits_of_attention_are_combined_first(
    any_bench, rng, heads, head_dim, splits, grid
) -> None:
    parts = normal(rng, 3, heads, splits, head_dim)
    scores, sums = normal(rng, 3, heads, splits), np.abs(normal(rng, 3, heads, splits)) + 0.1
    weights = torch.softmax(torch.from_numpy(scores + np.log(sums)), -1).numpy() / sums
    expected = (parts * weights[..., None]).sum(2).reshape(3, heads * head_dim)
    stats = any_bench.upload(np.stack([scores, sums], -1))
    before = AttentionSplits(stats, splits, head_dim)
    quantized_rows = quantized(any_bench, parts, heads * head_dim, before=before, grid=grid)
    check(quantized_rows, expected.astype(np.float64))


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_the_scale_of_elements_that_are_not_finite_is_not_finite(
    bench, rng, broken, normed
) -> None:
    x, gain = normal(rng, 3, 64), normal(rng, 64)
    before = RowNorm(bench.upload(gain), EPS) if normed else None
    assert np.isfinite(quantized(bench, x, 64, before=before)[1]).all()
    x[1, 40] = broken
    _, scales, _ = quantized(bench, x, 64, before=before)
    # The norm of a row divides all of its elements by one that is not finite.
    finite = [[True, True], [not (normed and np.isnan(broken)), False], [True, True]]
    assert np.isfinite(scales).tolist() == finite
