"""Tests of linear layers against torch in float64: every format and kernel, any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.products.linear import linear
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from rdrr_runtime.phases.weights.packing import upload_weight
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import (
    F32,
    TOLERANCE,
    UNITS_FIRST,
    Bench,
    normal,
    on_device,
    random_tensor,
    stored_matrix,
)

# A driver compiles a kernel for each shape, which takes the software adapter about a second, so
# each weight format has few cases (rows, N, K): K is no multiple of 256, nor of a step of tiles, N
# is no multiple of a tile, and there are rows for each size of a kernel.
GEMV = [(1, 67, 384), (5, 100, 576)]
TILED = [(33, 67, 356)]
MORE = [(2, 260, 256), (33, 100, 320), (70, 130, 36)]


FORMS = (
    *((dtype, Layout.ROW) for dtype in FORMATS),
    *((dtype, Layout.COLUMN) for dtype, form in FORMATS.items() if not form.values),
)
"""Weight formats that kernels read; column-major unquantized values are transposed when loaded."""


def reference(x: F32, weight: F32, bias: F32 | None = None) -> F32:
    wide = [torch.from_numpy(array).double() for array in (x, weight)]
    added = None if bias is None else torch.from_numpy(bias).double()
    return ops.linear(*wide, added).numpy()


def check(
    bench: Bench,
    rng: np.random.Generator,
    form: tuple[str, Layout],
    case: tuple[int, int, int],
    tiled: bool,
    *,
    units_first: bool = False,
    software: bool = False,
) -> None:
    rows, n, k = case
    weight, values = stored_matrix(bench, rng, *form, (n, k), units_first=units_first)
    x = normal(rng, rows, k)
    y = bench.poisoned(rows, n)
    ctx = on_device(bench.context(rows), software=software)
    phases = linear(ctx, weight, bench.upload(x), y, tiled=tiled, label="t")
    bench.run(phases, rows)
    assert relative_error(bench.download(y, rows, n), reference(x, values)) < TOLERANCE


@pytest.mark.parametrize(
    ("form", "case"),
    [
        *((form, GEMV[1]) for form in FORMS),
        *((form, GEMV[0]) for form in FORMS if form[0] in ("Q4_K", "Q6_K", "Q8_0", "F16", "F32")),
    ],
    ids=str,
)
def test_a_small_batch_with_every_weight_format_equals_torch(bench, rng, form, case) -> None:
    check(bench, rng, form, case, tiled=False)


@pytest.mark.parametrize("case", TILED)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_many_rows_with_every_weight_format_equal_torch(bench, rng, form, case) -> None:
    check(bench, rng, form, case, tiled=True)


@pytest.mark.parametrize(("case", "tiled"), [(GEMV[0], False), (TILED[0], True)], ids=str)
@pytest.mark.parametrize("form", UNITS_FIRST, ids=str)
def test_matrices_with_the_units_first_equal_torch(bench, rng, form, case, tiled) -> None:
    check(bench, rng, form, case, tiled, units_first=True)


@pytest.mark.parametrize(("rows", "tiled"), [(1, False), (5, False), (33, True)])
@pytest.mark.parametrize("dtype", ["Q4_K", "Q5_K", "Q6_K"])
def test_flat_blocks_that_cross_rows_equal_torch(bench, rng, dtype, rows, tiled) -> None:
    check(bench, rng, (dtype, Layout.FLAT), (rows, 67, 640), tiled)


@pytest.mark.parametrize("case", MORE)
@pytest.mark.parametrize("tiled", [False, True], ids=["gemv", "tiled"])
@pytest.mark.parametrize(
    "form", [("Q4_K", Layout.ROW), ("F32", Layout.ROW), ("Q8_0", Layout.COLUMN)], ids=str
)
def test_other_sizes_equal_torch(bench, rng, form, case, tiled) -> None:
    # Here tiles are those of software adapters, whose threads without rows skip the products.
    check(bench, rng, form, case, tiled, software=True)


@pytest.mark.parametrize("form", [("F16", Layout.ROW), ("Q4_K", Layout.COLUMN)], ids=str)
def test_the_wide_tile_equals_torch(bench, rng, monkeypatch, form) -> None:
    monkeypatch.setattr("rdrr_runtime.phases.products.linear.ENOUGH_TILES", 1)
    check(bench, rng, form, (70, 260, 192), tiled=True)


@pytest.mark.parametrize("case", GEMV)
def test_a_device_without_optional_features_equals_torch(plain_bench, rng, case) -> None:
    assert not plain_bench.device.features & {"subgroup", "shader-f16"}
    check(plain_bench, rng, ("Q4_K", Layout.ROW), case, tiled=False)


@pytest.mark.parametrize("tiled", [False, True], ids=["gemv", "tiled"])
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_bias_and_residual_are_added(bench, rng, layout, tiled) -> None:
    rows, n, k = 3, 70, 320
    weight, values = stored_matrix(bench, rng, "Q4_K", layout, (n, k))
    x, before, bias = normal(rng, rows, k), normal(rng, rows, n), normal(rng, n)
    y = bench.upload(before)
    phases = linear(
        bench.context(rows),
        weight,
        bench.upload(x),
        y,
        bias=bench.upload(bias),
        accumulate=True,
        tiled=tiled,
        label="t",
    )
    bench.run(phases, rows)
    expected = reference(x, values, bias) + before
    assert relative_error(bench.download(y, rows, n), expected) < TOLERANCE


@pytest.mark.parametrize("tiled", [False, True], ids=["gemv", "tiled"])
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_rows_beyond_the_step_are_left_unchanged(bench, rng, layout, tiled) -> None:
    n, k = 64, 256
    weight, values = stored_matrix(bench, rng, "Q8_0", layout, (n, k))
    x = normal(rng, 16, k)
    y = bench.poisoned(16, n)
    ctx = bench.context(3, max_rows=16)
    bench.run(linear(ctx, weight, bench.upload(x), y, tiled=tiled, label="t"), 16)
    got = bench.download(y, 16, n)
    assert relative_error(got[:3], reference(x[:3], values)) < TOLERANCE
    assert np.isnan(got[3:]).all()


@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_the_head_of_a_long_pass_computes_one_row(bench, rng, layout) -> None:
    n, k = 100, 256
    weight, values = stored_matrix(bench, rng, "Q6_K", layout, (n, k))
    x = normal(rng, 1, k)
    y = bench.poisoned(1, n)
    ctx = bench.context(40)
    bench.run(linear(ctx, weight, bench.upload(x), y, single_row=True, label="t"), 40)
    assert relative_error(bench.download(y, 1, n), reference(x, values)) < TOLERANCE


@pytest.mark.parametrize("tiled", [False, True], ids=["gemv", "tiled"])
@pytest.mark.parametrize(
    ("dtype", "layout", "k"),
    [("Q8_0", Layout.ROW, 256), ("Q8_0", Layout.COLUMN, 256), ("Q4_K", Layout.FLAT, 448)],
)
def test_a_weight_beyond_the_binding_limit_is_split(
    bench, rng, monkeypatch, dtype, layout, k, tiled
) -> None:
    n, rows = 150, 5
    raw, values = random_tensor(rng, dtype, layout, (n, k))
    bias = normal(rng, n)
    monkeypatch.setattr(type(bench.arena), "max_binding", 72 * 4 * 64)
    weight = upload_weight(bench.arena, DTYPES[dtype], layout, (n, k), raw, "weight")
    assert len(weight.parts) > 2
    x = normal(rng, rows, k)
    y = bench.poisoned(rows, n)
    phases = linear(
        bench.context(rows),
        weight,
        bench.upload(x),
        y,
        bias=bench.upload(bias),
        tiled=tiled,
        label="t",
    )
    assert len(phases) == len(weight.parts)
    bench.run(phases, rows)
    assert relative_error(bench.download(y, rows, n), reference(x, values, bias)) < TOLERANCE


def test_more_outputs_than_one_launch_dimension_allows_are_computed(bench, rng) -> None:
    n, k = 4 * 65_535 + 21, 4
    weight, values = stored_matrix(bench, rng, "F32", Layout.ROW, (n, k))
    x = normal(rng, 1, k)
    y = bench.poisoned(1, n)
    bench.run(linear(bench.context(1), weight, bench.upload(x), y, label="t"), 1)
    assert relative_error(bench.download(y, 1, n), reference(x, values)) < TOLERANCE


def test_an_unsupported_row_length_is_refused(bench) -> None:
    weight = GpuWeight(DTYPES["F32"], Layout.ROW, 8, 6, 2, 8, ())
    x = bench.poisoned(1, 8)
    with pytest.raises(FormatError, match="multiple of 4"):
        linear(bench.context(1), weight, x, bench.poisoned(1, 8), label="t")


def test_a_buffer_that_is_too_small_is_refused(bench, rng) -> None:
    weight, _ = stored_matrix(bench, rng, "F32", Layout.ROW, (8, 64))
    with pytest.raises(FormatError, match="too small"):
        linear(bench.context(2), weight, bench.poisoned(1, 64), bench.poisoned(2, 8), label="t")
