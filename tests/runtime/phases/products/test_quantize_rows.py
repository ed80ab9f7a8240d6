"""Tests of the quantization of token rows, with the norm or the activation before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_manifests.graph import Clamp
from rdrr_runtime.phases.products import quantize_rows as quantization
from rdrr_runtime.phases.products.fusion import GatedPair, RowNorm
from rdrr_runtime.phases.products.quantize_rows import (
    QuantizedRows,
    int8_sizes,
    padded_rows,
    quantize_rows,
)
from support.comparison import relative_error
from support.gpu import F32, Bench, in_int8, normal

EPS = 1e-5


def quantized(
    bench: Bench, x: F32, k: int, before: RowNorm | GatedPair | None, rows: int
) -> tuple[F32, F32]:
    """Quantize the first `rows` rows of x; return the values and the sums of all rows' groups."""
    max_rows = len(x)
    buffers = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in int8_sizes(max_rows, k))
    target = QuantizedRows(*buffers, padded_rows(max_rows), k)
    ctx = bench.context(rows, max_rows=max_rows)
    bench.run(quantize_rows(ctx, bench.upload(x), target, before=before, label="t"), rows)
    codes = bench.device.read(target.q).view(np.int8).reshape(-1, target.rows, 16)
    scales = bench.download(target.scales, target.k_padded // 32, target.rows, 2)
    values = codes.transpose(1, 0, 2).reshape(target.rows, -1, 32).astype(np.float32)
    scale, total = scales.transpose(2, 1, 0)
    with np.errstate(invalid="ignore"):
        values = values * scale[..., None]
    return values.reshape(target.rows, -1)[:max_rows], total[:max_rows]


def check(bench: Bench, x: F32, expected: F32, before: RowNorm | GatedPair | None) -> None:
    """Compare with float64 values; a code may differ by one where a value is halfway."""
    rows, k = expected.shape[0] - 2, expected.shape[1]
    got, sums = quantized(bench, x, k, before, rows)
    of_rows = in_int8(expected.astype(np.float32))[:rows]
    assert relative_error(got[:rows, :k], of_rows) < 0.01
    assert np.abs(got[:rows, :k] - of_rows).mean() < 1e-4 * np.abs(of_rows).max()
    assert (got[:rows, k:] == 0).all()
    groups = got[:rows].reshape(rows, -1, 32).sum(axis=2)
    assert relative_error(sums[:rows], groups) < 1e-5
    assert np.isnan(got[rows:]).all(), "rows beyond the step are left unchanged"


def norm_of(x: F32, gain: F32, offset: float) -> F32:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS) * (offset + gain)


@pytest.mark.parametrize("k", [36, 288, 2112])
def test_rows_are_quantized_as_they_are(bench, rng, k) -> None:
    x = normal(rng, 13, k)
    check(bench, x, x.astype(np.float64), None)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_each_16_elements_may_have_a_scale(bench, rng, normed) -> None:
    x, gain = normal(rng, 13, 288), normal(rng, 288)
    buffers = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in int8_sizes(13, 288))
    target = QuantizedRows(*buffers, padded_rows(13), 288, halves=True)
    before = RowNorm(bench.upload(gain), EPS, 0.0) if normed else None
    phases = quantize_rows(bench.context(13), bench.upload(x), target, before=before, label="t")
    bench.run(phases, 13)
    codes = bench.device.read(target.q).view(np.int8).reshape(-1, target.rows, 16)[:18, :13]
    scales = bench.download(target.scales, target.k_padded // 32, target.rows, 2)[:9, :13]
    got = codes * scales.transpose(0, 2, 1).reshape(18, 13, 1)
    expected = in_int8((norm_of(x, gain, 0.0) if normed else x).astype(np.float32), 16)
    assert relative_error(got.transpose(1, 0, 2).reshape(13, 288), expected) < 0.01
    assert np.abs(got.transpose(1, 0, 2).reshape(13, 288) - expected).mean() < 1e-4


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("k", [36, 288, 2112])
def test_a_norm_is_computed_first(any_bench, rng, k, offset) -> None:
    x, gain = 3 * normal(rng, 13, k), normal(rng, k)
    before = RowNorm(any_bench.upload(gain), EPS, offset)
    check(any_bench, x, norm_of(x, gain, offset), before)


@pytest.mark.parametrize("threads", quantization.NORM_CANDIDATES)
def test_a_norm_is_computed_with_any_number_of_threads(bench, rng, monkeypatch, threads) -> None:
    monkeypatch.setattr(quantization, "NORM_THREADS", threads)
    x, gain = normal(rng, 13, 2112), normal(rng, 2112)
    check(bench, x, norm_of(x, gain, 0.0), RowNorm(bench.upload(gain), EPS, 0.0))


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
@pytest.mark.parametrize("k", [36, 288])
def test_gate_and_up_are_joined_first(bench, rng, k, joined) -> None:
    gate, up = normal(rng, 13, k), normal(rng, 13, k)
    expected = torch.nn.functional.silu(torch.from_numpy(gate).double()).numpy() * up
    x = np.concatenate([gate, up], axis=1) if joined else gate
    before = GatedPair(None if joined else bench.upload(up), "silu")
    check(bench, x, expected, before)


def test_the_clamped_activation_is_computed_first(bench, rng) -> None:
    clamp = Clamp(limit=0.7, alpha=1.702, up_offset=1.0)
    gate, up = normal(rng, 13, 64), normal(rng, 13, 64)
    g = np.minimum(gate.astype(np.float64), 0.7)
    expected = g / (1 + np.exp(-1.702 * g)) * (np.clip(up, -0.7, 0.7) + 1)
    check(bench, gate, expected, GatedPair(bench.upload(up), "silu", clamp))
