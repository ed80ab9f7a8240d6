"""`bench_kernels.py`: the figures of products and pairs are consistent, wrong usage is refused."""

from __future__ import annotations

import pytest
from published.kernels import products
from published.kernels.pairs import PAIRS
from rdrr_format.errors import UsageError
from shapes import SHAPES, Shape
from support.commands import error_line
from support.scripts import script


@pytest.mark.thorough
def test_rates_follow_from_the_time_and_the_sizes(monkeypatch):
    shapes = {"one": Shape("llama", 64, 64, 1, 2, 1, 32, 128, tied=False)}
    monkeypatch.setattr(products, "SHAPES", shapes)
    names = ("F16, gemv", "Q4_K row-major, gemv")
    forms = [form for form in products.FORMS if form.name in names]
    assert len(forms) == 2
    monkeypatch.setattr(products, "FORMS", forms)
    measured = products.products("one", repeat=1, head=False)
    assert {product["matrix"] for product in measured["products"]} == {
        "qkv",
        "output",
        "gate-up",
        "down",
    }
    for product in measured["products"]:
        seconds = product["microseconds"]["median"] * 1e-6
        assert product["gigabytes_per_second"] == pytest.approx(
            product["weight_bytes"] / seconds / 1e9
        )
        assert product["gigaflops"] == pytest.approx(
            2 * product["n"] * product["k"] / seconds / 1e9
        )
        share = product["gigabytes_per_second"] / measured["copy_gigabytes_per_second"]
        assert product["share_of_copy"] == pytest.approx(share)


def test_the_matrices_of_a_shape_have_the_sizes_of_the_model():
    sizes = {matrix.name: (matrix.n, matrix.k) for matrix in SHAPES["gemma3-1b"].matrices()}
    assert sizes["gate-up"] == (2 * 6912, 1152)
    assert sizes["qkv"] == (1024 + 2 * 256, 1152)


def test_an_unknown_shape_is_wrong_usage_and_the_known_shapes_are_listed():
    with pytest.raises(UsageError, match="gemma3-1b"):
        products.products("gemma4")


@pytest.mark.thorough
def test_all_pairs_of_kernels_are_measured_and_state_the_published_ratio():
    done = script("bench_kernels", "--repeat", 1)
    answer = done.json()
    assert [ratio["name"].partition(":")[0] for ratio in answer["ratios"]] == list(PAIRS)
    assert [ratio["published"] for ratio in answer["ratios"]] == [
        pair.published for pair in PAIRS.values()
    ]
    assert all(ratio["median"] > 0 for ratio in answer["ratios"])
    assert "flash-attention" in done.out  # the table for people comes first


def test_an_unknown_shape_is_reported_in_one_line_with_exit_code_2():
    done = script("bench_kernels", "--shape", "gemma4")
    assert "unknown shape" in error_line(done, 2)
