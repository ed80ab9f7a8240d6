"""Tests of LayerNorm, activations without a gate and learned positions, against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.errors import FormatError
from rdrr_runtime.phases.norms.norm import (
    NormForm,
    add_normalized,
    normalize,
    normalize_in_place,
)
from rdrr_runtime.phases.rows.activation import ACTIVATIONS, activate
from rdrr_runtime.phases.rows.gated_activation import gated_activation
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal
from torch.nn import functional

EPS = 1e-5
THEIRS = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "relu2": lambda x: functional.relu(x).square(),
}


def wide(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).double()


def theirs(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return functional.layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias), EPS).numpy()


@pytest.mark.parametrize("width", [64, 576, 1156])
def test_layer_norm_equals_torch_far_from_zero(any_bench, rng, width) -> None:
    """The mean is large, so that a variance computed as mean(x^2) - mean(x)^2 would be wrong."""
    rows = 5
    x, weight, bias = normal(rng, rows, width) + 300, normal(rng, width), normal(rng, width)
    y = any_bench.poisoned(rows, width)
    form = NormForm(
        width=width,
        eps=EPS,
        centred=True,
        weight=any_bench.upload(weight),
        bias=any_bench.upload(bias),
    )
    made = normalize(any_bench.context(rows), any_bench.upload(x), y, form, label="t")
    any_bench.run(made, rows)
    got = any_bench.download(y, rows, width)
    assert relative_error(got, theirs(x, weight, bias)) < TOLERANCE


def test_layer_norm_of_heads_in_place_has_a_weight_for_each(bench, rng) -> None:
    rows, heads, width = 3, 7, 80
    x, weight = normal(rng, rows, heads, width), normal(rng, heads, width)
    buffer, none = bench.upload(x), np.zeros(width, np.float32)
    form = NormForm(
        width=width,
        eps=EPS,
        centred=True,
        per_row=heads,
        weight=bench.upload(weight),
        per_vector=True,
    )
    bench.run(normalize_in_place(bench.context(rows), buffer, form, label="t"), rows)
    got = bench.download(buffer, rows, heads, width)
    ones = np.ones(width, np.float32)
    assert relative_error(got, theirs(x, ones, none) * weight) < TOLERANCE


def test_layer_norm_and_residual_addition_equal_torch(any_bench, rng) -> None:
    rows, width = 5, 320
    x, r, weight = normal(rng, rows, width), normal(rng, rows, width), normal(rng, width)
    stream = any_bench.upload(x)
    form = NormForm(width=width, eps=EPS, centred=True, weight=any_bench.upload(weight), offset=1.0)
    made = add_normalized(any_bench.context(rows), stream, any_bench.upload(r), form, label="t")
    any_bench.run(made, rows)
    got = any_bench.download(stream, rows, width)
    expected = x + theirs(r, weight + 1, np.zeros(width, np.float32))
    assert relative_error(got, expected) < TOLERANCE


def test_layer_norm_of_a_single_row_leaves_the_others_unchanged(bench, rng) -> None:
    x, y = normal(rng, 4, 64), bench.poisoned(4, 64)
    form = NormForm(width=64, eps=EPS, centred=True)
    made = normalize(bench.context(4), bench.upload(x), y, form, single_row=True, label="t")
    bench.run(made, 4)
    got = bench.download(y, 4, 64)
    expected = functional.layer_norm(wide(x[:1]), (64,), eps=EPS).numpy()
    assert relative_error(got[:1], expected) < TOLERANCE
    assert np.isnan(got[1:]).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_torch(bench, rng, name) -> None:
    rows, width = 3, 324
    x = normal(rng, rows, width) * 4
    x[0, :6] = [0.0, 50.0, -50.0, 1e4, -1e4, -5.0]
    buffer = bench.upload(x)
    phases = activate(bench.context(rows), buffer, width=width, activation=name, label="t")
    bench.run(phases, rows)
    got, expected = bench.download(buffer, rows, width), THEIRS[name](wide(x)).numpy()
    assert np.abs(got - expected).max() < 1e-6 * np.abs(expected).max()
    small = np.abs(x) < 20
    assert relative_error(got[small], expected[small]) < 1e-6


def test_gated_activation_has_the_same_activations(bench, rng) -> None:
    rows, width = 2, 64
    gate, up, y = normal(rng, rows, width), normal(rng, rows, width), bench.poisoned(2, 64)
    phases = gated_activation(
        bench.context(rows),
        bench.upload(gate),
        bench.upload(up),
        y,
        width=width,
        activation="gelu_erf",
        label="t",
    )
    bench.run(phases, rows)
    expected = (functional.gelu(wide(gate)) * wide(up)).numpy()
    assert relative_error(bench.download(y, rows, width), expected) < TOLERANCE


def test_an_unknown_activation_is_refused(bench) -> None:
    with pytest.raises(FormatError, match="mish"):
        activate(bench.context(1), bench.poisoned(1, 64), width=64, activation="mish", label="t")
