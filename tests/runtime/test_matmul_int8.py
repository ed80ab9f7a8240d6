"""Products of many rows in int8: against the same products of the quantized rows in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import DeviceError
from rdrr_format.layouts import Layout
from rdrr_runtime.kernels.matmul_int8 import LARGE, SMALL, TINY, TYPES, choose_tile, matmul_int8
from rdrr_runtime.kernels.quantize_rows import Int8Rows, int8_sizes, padded, quantize_rows
from rdrr_runtime.packing import GpuWeight, upload_weight
from support.gpu import F32, TOLERANCE, Bench, in_int8, normal, random_tensor, relative_error

TILES = {"large": LARGE, "small": SMALL, "tiny": TINY}
SCALINGS = ("Q8_0", "Q4_K", "Q6_K")
"""One type for each way in which codes are scaled."""


def rows_of(bench: Bench, max_rows: int, k: int) -> Int8Rows:
    """Buffers full of ones bits: NaN scales, so that a read of what nobody wrote is seen."""
    sizes = int8_sizes(max_rows, k)
    q, scales = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in sizes)
    return Int8Rows(q, scales, padded(max_rows, 128), k)


def stored(
    bench: Bench, rng: np.random.Generator, dtype: str, n: int, k: int
) -> tuple[GpuWeight, F32]:
    raw, values = random_tensor(rng, dtype, Layout.ROW, (n, k))
    return upload_weight(bench.arena, DTYPES[dtype], Layout.ROW, (n, k), raw, "weight"), values


def check(bench: Bench, rng: np.random.Generator, dtype: str, case, tile: str) -> None:
    rows, n, k = case
    weight, values = stored(bench, rng, dtype, n, k)
    x = normal(rng, rows, k)
    ctx, y = bench.context(rows), bench.poisoned(rows, n)
    target = rows_of(bench, rows, k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, tile=TILES[tile], label="t"),
    ]
    bench.run(made, rows)
    got = bench.download(y, rows, n)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T
    # A code may differ by one where x lies in the middle between two.
    assert relative_error(got, expected) < 10 * TOLERANCE
    exact = x.astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got, exact) < 0.02


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_equals_the_product(bench, rng, dtype) -> None:
    check(bench, rng, dtype, (70, 131, 384), "small")


@pytest.mark.parametrize("tile", [one for one in TILES if one != "small"])
@pytest.mark.parametrize("dtype", SCALINGS)
def test_every_tile_equals_the_product(bench, rng, dtype, tile) -> None:
    check(bench, rng, dtype, (70, 131, 384), tile)


@pytest.mark.parametrize(
    ("dtype", "case"),
    [*((one, (1, 67, 36)) for one in TYPES), *((one, (130, 70, 288)) for one in SCALINGS)],
)
def test_odd_sizes_equal_the_product(bench, rng, dtype, case) -> None:
    check(bench, rng, dtype, case, "small")


@pytest.mark.parametrize("dtype", SCALINGS)
def test_a_device_without_optional_features_equals_the_product(plain_bench, rng, dtype) -> None:
    check(plain_bench, rng, dtype, (33, 67, 384), "small")


def test_bias_and_residual_are_added(bench, rng) -> None:
    rows, n, k = 20, 70, 320
    weight, values = stored(bench, rng, "Q4_K", n, k)
    x, before, bias = normal(rng, rows, k), normal(rng, rows, n), normal(rng, n)
    ctx, y, target = bench.context(rows), bench.upload(before), rows_of(bench, rows, k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, bias=bench.upload(bias), accumulate=True, label="t"),
    ]
    bench.run(made, rows)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T + bias + before
    assert relative_error(bench.download(y, rows, n), expected) < 10 * TOLERANCE


def test_rows_beyond_the_step_are_left_alone(bench, rng) -> None:
    n, k = 64, 256
    weight, values = stored(bench, rng, "Q8_0", n, k)
    x = normal(rng, 90, k)
    ctx, y, target = bench.context(3, max_rows=90), bench.poisoned(90, n), rows_of(bench, 90, k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, label="t"),
    ]
    bench.run(made, 90)
    got = bench.download(y, 90, n)
    expected = in_int8(x[:3]).astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got[:3], expected) < 10 * TOLERANCE
    assert np.isnan(got[3:]).all()


def test_a_weight_beyond_the_binding_limit_is_split(bench, rng, monkeypatch) -> None:
    rows, n, k = 12, 150, 256
    raw, values = random_tensor(rng, "Q8_0", Layout.ROW, (n, k))
    monkeypatch.setattr(type(bench.arena), "max_binding", 72 * 4 * 64)
    weight = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (n, k), raw, "weight")
    monkeypatch.undo()
    assert len(weight.parts) > 2
    x = normal(rng, rows, k)
    ctx, y, target = bench.context(rows), bench.poisoned(rows, n), rows_of(bench, rows, k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, label="t"),
    ]
    bench.run(made, rows)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(bench.download(y, rows, n), expected) < 10 * TOLERANCE


def test_a_row_of_zeros_has_scale_zero(bench, rng) -> None:
    rows, n, k = 9, 66, 256
    weight, values = stored(bench, rng, "Q4_K", n, k)
    x = normal(rng, rows, k)
    x[4] = 0
    ctx, y, target = bench.context(rows), bench.poisoned(rows, n), rows_of(bench, rows, k)
    made = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, label="t"),
    ]
    bench.run(made, rows)
    got = bench.download(y, rows, n)
    assert (got[4] == 0).all()
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got, expected) < 10 * TOLERANCE


@pytest.mark.parametrize("form", [("Q4_K", Layout.COLUMN), ("F16", Layout.ROW)], ids=str)
def test_a_matrix_without_int8_is_refused(bench, rng, form) -> None:
    dtype, layout = form
    raw, _ = random_tensor(rng, dtype, layout, (64, 256))
    weight = upload_weight(bench.arena, DTYPES[dtype], layout, (64, 256), raw, "weight")
    target = rows_of(bench, 9, 256)
    with pytest.raises(DeviceError, match="no int8 kernel"):
        matmul_int8(bench.context(9), weight, target, bench.poisoned(9, 64), label="t")


@pytest.mark.parametrize(
    ("rows", "outputs", "storage", "tile"),
    [
        (512, 14336, 49152, LARGE),
        (512, 14336, 10240, SMALL),
        (512, 8192, 49152, SMALL),
        (512, 512, 49152, TINY),
        (32, 16384, 49152, TINY),
        (33, 16384, 49152, SMALL),
    ],
)
def test_the_tile_follows_from_the_size_and_the_device(bench, rows, outputs, storage, tile) -> None:
    ctx = replace(bench.context(1), max_rows=rows, workgroup_storage=storage)
    assert choose_tile(ctx, TYPES["Q4_K"], outputs) == tile
