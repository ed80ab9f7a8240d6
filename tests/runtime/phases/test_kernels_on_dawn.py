"""A sample of the kernels on Dawn, held to the same references; `make test-dawn` runs them all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from rdrr_device.arena import arena
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.products.linear import linear
from rdrr_runtime.phases.sampling.argmax import SCRATCH_BYTES, argmax
from support.comparison import relative_error
from support.dawn_device import open_dawn_device, why_no_dawn
from support.gpu import TOLERANCE, Bench, normal, stored_matrix


@pytest.fixture(scope="module")
def dawn_bench() -> Iterator[Bench]:
    why = why_no_dawn()
    if why is not None:
        pytest.skip(why)
    device = open_dawn_device()
    with arena(device, "test") as buffers:
        yield Bench(device, buffers)
    device.close()


@pytest.mark.parametrize(
    ("dtype", "layout", "rows"),
    [("Q4_K", Layout.ROW, 1), ("Q6_K", Layout.COLUMN, 1), ("F16", Layout.ROW, 5)],
    ids=str,
)
def test_products_equal_the_reference(dawn_bench, rng, dtype, layout, rows):
    weight, values = stored_matrix(dawn_bench, rng, dtype, layout, (67, 384))
    x, y = normal(rng, rows, 384), dawn_bench.poisoned(rows, 67)
    phases = linear(dawn_bench.context(rows), weight, dawn_bench.upload(x), y, label="t")
    dawn_bench.run(phases, rows)
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    assert relative_error(dawn_bench.download(y, rows, 67), expected) < TOLERANCE


def test_the_argmax_is_found(dawn_bench, rng):
    logits, ctx = normal(rng, 40_000), dawn_bench.context(1)
    scratch = dawn_bench.arena.empty("scratch", SCRATCH_BYTES)
    phases = argmax(
        ctx.state, dawn_bench.upload(logits), scratch, vocabulary=logits.size, label="t"
    )
    dawn_bench.run(phases, 1)
    assert logits.argmax() in dawn_bench.words(ctx.state.step)
