"""Tests of the ops between the matrix products, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.errors import FormatError
from rdrr_manifests.graph import Clamp
from rdrr_runtime.phases.attention.rope import rope
from rdrr_runtime.phases.norms.norm import (
    NormForm,
    add_normalized,
    normalize,
    normalize_in_place,
)
from rdrr_runtime.phases.rows import elementwise
from rdrr_runtime.phases.rows.activation import ACTIVATIONS, CLIP, activate
from rdrr_runtime.phases.rows.copy import copy, copy_row
from rdrr_runtime.phases.rows.gated_activation import gated_activation
from rdrr_runtime.phases.rows.sparsify import sparsify
from rdrr_runtime.phases.streams.stream_coefficients import stream_coefficients
from rdrr_runtime.records import pack_step
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal

EPS = 1e-6


def wide(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).double()


def norm(x: np.ndarray, weight: np.ndarray, offset: float = 0.0) -> np.ndarray:
    return ops.rms_norm(wide(x), wide(weight), EPS, offset).numpy()


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("width", [64, 576, 1156])
def test_norm_equals_torch(any_bench, rng, width, offset) -> None:
    rows = 5
    x, weight = normal(rng, rows, width), normal(rng, width)
    y = any_bench.poisoned(rows, width)
    form = NormForm(width=width, eps=EPS, weight=any_bench.upload(weight), offset=offset)
    made = normalize(any_bench.context(rows), any_bench.upload(x), y, form, label="t")
    any_bench.run(made, rows)
    got = any_bench.download(y, rows, width)
    assert relative_error(got, norm(x, weight, offset)) < TOLERANCE


def test_norm_of_heads_in_place_equals_torch(bench, rng) -> None:
    rows, heads, width = 3, 7, 80
    x, weight = normal(rng, rows, heads, width), normal(rng, width)
    buffer = bench.upload(x)
    form = NormForm(width=width, eps=EPS, weight=bench.upload(weight), offset=1.0, per_row=heads)
    made = normalize_in_place(bench.context(rows), buffer, form, label="t")
    bench.run(made, rows)
    got = bench.download(buffer, rows, heads, width)
    assert relative_error(got, norm(x, weight, 1.0)) < TOLERANCE


@pytest.mark.parametrize("scaled", [False, True])
def test_norm_and_residual_addition_equal_torch(any_bench, rng, scaled) -> None:
    rows, width, factor = 5, 320, np.array([0.75], np.float32)
    x, r, weight = normal(rng, rows, width), normal(rng, rows, width), normal(rng, width)
    stream = any_bench.upload(x)
    scale = (any_bench.upload(factor), 3.0) if scaled else None
    form = NormForm(width=width, eps=EPS, weight=any_bench.upload(weight), offset=1.0, scale=scale)
    made = add_normalized(any_bench.context(rows), stream, any_bench.upload(r), form, label="t")
    any_bench.run(made, rows)
    got = any_bench.download(stream, rows, width)
    expected = (x + norm(r, weight, 1.0)) * (2.25 if scaled else 1.0)
    assert relative_error(got, expected) < TOLERANCE


def test_norm_of_a_single_row_leaves_the_others_unchanged(bench, rng) -> None:
    x, weight = normal(rng, 4, 64), normal(rng, 64)
    y = bench.poisoned(4, 64)
    form = NormForm(width=64, eps=EPS, weight=bench.upload(weight))
    made = normalize(bench.context(4), bench.upload(x), y, form, single_row=True, label="t")
    bench.run(made, 4)
    got = bench.download(y, 4, 64)
    assert relative_error(got[:1], norm(x[:1], weight)) < TOLERANCE
    assert np.isnan(got[1:]).all()


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (80, 32), (96, 96)])
def test_rope_equals_torch_and_leaves_other_elements_unchanged(
    bench, rng, head_dim, rotary, interleaved
) -> None:
    positions = [0, 7, 300, 41]
    rows, heads, context = len(positions), 3, 512
    x = normal(rng, rows, heads, head_dim)
    angles = rng.uniform(-np.pi, np.pi, (context, rotary // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    buffer = bench.upload(x)
    phases = rope(
        bench.context(rows, positions=positions),
        buffer,
        bench.upload(table),
        heads=heads,
        head_dim=head_dim,
        rotary_dim=rotary,
        interleaved=interleaved,
        label="t",
    )
    bench.run(phases, rows)
    at = torch.tensor(positions)
    expected = ops.rope(wide(x), at, wide(table), interleaved=interleaved).numpy()
    got = bench.download(buffer, rows, heads, head_dim)
    assert relative_error(got, expected) < TOLERANCE
    assert np.array_equal(got[..., rotary:], x[..., rotary:])


def test_more_rotated_elements_than_a_head_has_are_refused(bench) -> None:
    x = bench.poisoned(1, 64)
    with pytest.raises(FormatError, match="more elements are rotated"):
        rope(bench.context(1), x, x, heads=1, head_dim=64, rotary_dim=66, label="t")


@pytest.mark.parametrize("fused", [False, True], ids=["two inputs", "fused"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation_equals_torch(bench, rng, activation, fused) -> None:
    rows, width = 5, 340
    gate, up = 4 * normal(rng, rows, width), normal(rng, rows, width)
    gate[0, :4] = [-1000.0, 1000.0, 0.0, -90.0]  # where exp and tanh overflow
    y = bench.poisoned(rows, width)
    first = bench.upload(np.concatenate([gate, up], axis=1) if fused else gate)
    second = None if fused else bench.upload(up)
    ctx = bench.context(rows)
    phases = gated_activation(ctx, first, second, y, width=width, activation=activation, label="t")
    bench.run(phases, rows)
    expected = ops.gated_activation(wide(gate), wide(up), activation)
    got = bench.download(y, rows, width)
    assert relative_error(got[1:], expected[1:]) < TOLERANCE
    assert relative_error(got[0], expected[0]) < TOLERANCE


@pytest.mark.parametrize("clamp", [None, Clamp(7.0, 1.702, 1.0)], ids=["plain", "clamped"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gated_activation_keeps_nan(bench, rng, activation, clamp) -> None:
    gate, up = normal(rng, 1, 64), normal(rng, 1, 64)
    gate[0, 5] = up[0, 40] = np.nan
    y = bench.poisoned(1, 64)
    operands = (bench.upload(gate), bench.upload(up), y)
    wanted = {"width": 64, "activation": activation, "clamp": clamp}
    bench.run(gated_activation(bench.context(1), *operands, **wanted, label="t"), 1)
    assert np.flatnonzero(np.isnan(bench.download(y, 64))).tolist() == [5, 40]


@pytest.mark.parametrize("activation", [*ACTIVATIONS, CLIP])
def test_an_activation_keeps_nan(bench, rng, activation) -> None:
    x = normal(rng, 1, 64)
    x[0, [5, 40]] = np.nan, -np.float32(np.nan)
    held, limit = bench.upload(x), 0.5 if activation == CLIP else None
    phases = activate(
        bench.context(1), held, width=64, activation=activation, limit=limit, label="t"
    )
    bench.run(phases, 1)
    assert np.flatnonzero(np.isnan(bench.download(held, 64))).tolist() == [5, 40]


def test_a_sparse_activation_keeps_nan(any_bench, rng) -> None:
    x = normal(rng, 2, 64)
    x[1, 5] = np.nan
    held = any_bench.upload(x)
    any_bench.run(sparsify(any_bench.context(2), held, width=64, multiplier=0.7, label="t"), 2)
    assert np.isnan(any_bench.download(held, 2, 64)).all(axis=1).tolist() == [False, True]
    assert np.isfinite(any_bench.download(held, 64)).all()


def test_coefficients_of_streams_keep_nan(any_bench, rng) -> None:
    x, y = normal(rng, 2, 64), any_bench.poisoned(2, 3)
    x[1, 5] = np.nan
    weights = any_bench.upload(normal(rng, 2, 64)), any_bench.upload(normal(rng, 3, 2))
    operands, wanted = (any_bench.upload(x), weights, y), {"sizes": (64, 2, 3), "factor": 3.0}
    any_bench.run(stream_coefficients(any_bench.context(2), *operands, **wanted, label="t"), 2)
    assert np.isnan(any_bench.download(y, 2, 3)).tolist() == [[False] * 3, [True] * 3]


def test_an_unknown_activation_is_refused(bench) -> None:
    x = bench.poisoned(1, 64)
    with pytest.raises(FormatError, match="unknown activation"):
        gated_activation(bench.context(1), x, x, x, width=64, activation="mish", label="t")


def test_elementwise_ops_equal_torch(bench, rng) -> None:
    rows, width = 3, 101
    ctx = bench.context(rows)
    x, r = 50 * normal(rng, rows, width), normal(rng, rows, width)
    x[0, 0] = 1e4  # beyond the cap
    added, capped, scaled = (bench.upload(x) for _ in range(3))
    bench.run(
        [
            *elementwise.residual_add(ctx, added, bench.upload(r), width=width, label="t"),
            *elementwise.softcap(ctx, capped, width=width, cap=30.0, label="t"),
            *elementwise.scale(ctx, scaled, width=width, factor=0.25, label="t"),
        ],
        rows,
    )
    assert relative_error(bench.download(added, rows, width), x + r) < TOLERANCE
    cap = ops.softcap(wide(x), 30.0)
    assert relative_error(bench.download(capped, rows, width), cap) < TOLERANCE
    assert relative_error(bench.download(scaled, rows, width), x / 4) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 6])
def test_the_last_row_is_copied(bench, rng, rows) -> None:
    x = normal(rng, 8, 100)
    y = bench.poisoned(1, 100)
    ctx = bench.context(rows, max_rows=8)
    bench.run(copy_row(ctx, bench.upload(x), y, width=100, label="t"), rows)
    assert np.array_equal(bench.download(y, 1, 100), x[rows - 1 : rows])


@pytest.mark.parametrize("wanted", [1, 3, 5])
def test_the_last_n_rows_are_copied(bench, rng, wanted) -> None:
    x = normal(rng, 8, 100)
    y = bench.poisoned(8, 100)
    ctx = bench.context(5, max_rows=8)
    bench.device.write(ctx.state.step, pack_step([0] * 5, range(5), last_n=wanted))
    bench.run(copy_row(ctx, bench.upload(x), y, width=100, several=True, label="t"), wanted)
    got = bench.download(y, 8, 100)
    assert np.array_equal(got[:wanted], x[5 - wanted : 5])
    assert np.isnan(got[wanted:]).all()


@pytest.mark.parametrize("words", [1, 1000])
def test_a_buffer_is_copied(bench, rng, words) -> None:
    x, y = normal(rng, 4 * words), bench.poisoned(4 * words)
    bench.run(copy(bench.upload(x), y, label="t"), 1)
    assert np.array_equal(bench.download(y, 4 * words), x)


def test_a_copy_into_a_buffer_of_another_size_is_refused(bench) -> None:
    with pytest.raises(FormatError, match="do not allow a copy"):
        copy(bench.poisoned(8), bench.poisoned(4), label="t")
