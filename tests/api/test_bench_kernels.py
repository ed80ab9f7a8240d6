"""Kernels alone: every form of a shape's matrices runs or says why not, with consistent rates."""

from __future__ import annotations

import pytest
from rdrr.bench import _kernel_shapes, kernels
from rdrr.bench._kernel_shapes import Shape
from rdrr_format.errors import UsageError


def test_rates_follow_from_the_time_and_the_sizes(monkeypatch):
    shapes = {"one": Shape(64, 64, 32, 64, 128)}
    monkeypatch.setattr(kernels, "SHAPES", shapes)
    monkeypatch.setattr(kernels, "FORMS", kernels.FORMS[1:5:3])  # F16 gemv and Q4_K gemv by rows
    found = kernels.products("one", repeat=1, head=False)
    assert {one["matrix"] for one in found["products"]} == {"qkv", "output", "gate-up", "down"}
    for one in found["products"]:
        seconds = one["microseconds"]["median"] * 1e-6
        assert one["gigabytes_per_second"] == pytest.approx(one["weight_bytes"] / seconds / 1e9)
        assert one["gigaflops"] == pytest.approx(2 * one["n"] * one["k"] / seconds / 1e9)
        share = one["gigabytes_per_second"] / found["copy_gigabytes_per_second"]
        assert one["share_of_copy"] == pytest.approx(share)


def test_shapes_have_the_sizes_of_their_models():
    sizes = {one.name: (one.n, one.k) for one in _kernel_shapes.SHAPES["gemma3-1b"].matrices()}
    assert sizes["gate-up"] == (2 * 6912, 1152)
    assert sizes["qkv"] == (1024 + 2 * 256, 1152)


def test_a_shape_that_is_not_known_is_wrong_usage_and_names_those_that_are():
    with pytest.raises(UsageError, match="gemma3-1b"):
        kernels.products("gemma4")
