"""Tests of tiled int8 products against float64 products with the same quantized rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import DeviceError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.products.matmul_int8 import (
    LARGE,
    SMALL,
    TINY,
    TYPES,
    choose_tile,
    matmul_int8,
    refusal,
)
from rdrr_runtime.phases.products.quantize_rows import (
    QuantizedRows,
    int8_sizes,
    padded,
    quantize_rows,
)
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.packing import upload_weight
from support.comparison import relative_error
from support.gpu import TOLERANCE, Bench, in_int8, normal, on_device, random_tensor, stored_matrix

TILES = {
    "large": LARGE,
    "small": SMALL,
    "tiny": TINY,
    "small in 2 teams": replace(SMALL, teams=2),
    "tiny in 2 teams": replace(TINY, teams=2),
    "tiny in 4 teams": replace(TINY, teams=4),
}
WEIGHTS = tuple(sorted(TYPES))
SCALINGS = ("Q8_0", "Q4_K", "Q6_K")
"""One weight type for each way in which codes are scaled."""


def int8_buffers(bench: Bench, max_rows: int, k: int) -> QuantizedRows:
    """Return buffers with all bits set: NaN scales make reads of unwritten data noticeable."""
    sizes = int8_sizes(max_rows, k)
    q, scales = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in sizes)
    return QuantizedRows(q, scales, padded(max_rows, 128), k)


def check(
    bench: Bench,
    rng: np.random.Generator,
    dtype: str,
    case,
    tile: str,
    *,
    units_first: bool = False,
) -> None:
    rows, n, k = case
    weight, values = stored_matrix(bench, rng, dtype, Layout.ROW, (n, k), units_first=units_first)
    x = normal(rng, rows, k)
    if rows == 1:  # its inputs could cancel, and its products be as small as their rounding
        x += 1.0
    ctx, y = bench.context(rows), bench.poisoned(rows, n)
    target = int8_buffers(bench, rows, k)
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, tile=TILES[tile], label="t"),
    ]
    bench.run(phases, rows)
    got = bench.download(y, rows, n)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T
    # A code of x may differ by one if x is halfway between two codes.
    assert relative_error(got, expected) < 20 * TOLERANCE
    exact = x.astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got, exact) < 0.02


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_every_weight_type_equals_the_reference(bench, rng, dtype) -> None:
    check(bench, rng, dtype, (70, 131, 384), "small")


@pytest.mark.parametrize("dtype", SCALINGS)
def test_a_matrix_with_the_units_first_equals_the_reference(bench, rng, dtype) -> None:
    check(bench, rng, dtype, (33, 131, 384), "tiny", units_first=True)


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile != "small"])
@pytest.mark.parametrize("dtype", SCALINGS)
def test_every_tile_equals_the_reference(bench, rng, dtype, tile) -> None:
    check(bench, rng, dtype, (70, 131, 384), tile)


@pytest.mark.parametrize(
    ("dtype", "case"),
    [
        *((dtype, (1, 67, 36)) for dtype in WEIGHTS),
        *((dtype, (130, 70, 288)) for dtype in SCALINGS),
    ],
)
def test_odd_sizes_equal_the_reference(bench, rng, dtype, case) -> None:
    check(bench, rng, dtype, case, "small")


@pytest.mark.parametrize("k", [36, 288, 1088])
def test_teams_share_any_number_of_steps(bench, rng, k) -> None:
    check(bench, rng, "Q4_K", (33, 67, k), "tiny in 2 teams")


@pytest.mark.parametrize("dtype", SCALINGS)
def test_a_device_without_optional_features_equals_the_reference(plain_bench, rng, dtype) -> None:
    check(plain_bench, rng, dtype, (33, 67, 384), "small")


@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K"])
def test_bias_and_residual_are_added(bench, rng, dtype) -> None:
    rows, n, k = 20, 70, 320
    weight, values = stored_matrix(bench, rng, dtype, Layout.ROW, (n, k))
    x, before, bias = normal(rng, rows, k), normal(rng, rows, n), normal(rng, n)
    ctx, y, target = bench.context(rows), bench.upload(before), int8_buffers(bench, rows, k)
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, bias=bench.upload(bias), accumulate=True, label="t"),
    ]
    bench.run(phases, rows)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T + bias + before
    assert relative_error(bench.download(y, rows, n), expected) < 10 * TOLERANCE


def test_rows_beyond_the_step_are_left_unchanged(bench, rng) -> None:
    n, k = 64, 256
    weight, values = stored_matrix(bench, rng, "Q8_0", Layout.ROW, (n, k))
    x = normal(rng, 90, k)
    ctx, y, target = (
        bench.context(3, max_rows=90),
        bench.poisoned(90, n),
        int8_buffers(bench, 90, k),
    )
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, label="t"),
    ]
    bench.run(phases, 90)
    got = bench.download(y, 90, n)
    expected = in_int8(x[:3]).astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got[:3], expected) < 10 * TOLERANCE
    assert np.isnan(got[3:]).all()


def test_a_weight_beyond_the_binding_limit_is_split(bench, rng, monkeypatch) -> None:
    rows, n, k = 12, 150, 256
    raw, values = random_tensor(rng, "Q8_0", Layout.ROW, (n, k))
    monkeypatch.setattr(type(bench.arena), "max_binding", 288 * 64)
    weight = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (n, k), raw, "weight")
    monkeypatch.undo()
    assert len(weight.parts) > 2
    x, bias = normal(rng, rows, k), normal(rng, n)
    ctx, y, target = bench.context(rows), bench.poisoned(rows, n), int8_buffers(bench, rows, k)
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, bias=bench.upload(bias), label="t"),
    ]
    bench.run(phases, rows)
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T + bias
    assert relative_error(bench.download(y, rows, n), expected) < 10 * TOLERANCE


def test_a_row_of_zeros_has_scale_zero(bench, rng) -> None:
    rows, n, k = 9, 66, 256
    weight, values = stored_matrix(bench, rng, "Q4_K", Layout.ROW, (n, k))
    x = normal(rng, rows, k)
    x[4] = 0
    ctx, y, target = bench.context(rows), bench.poisoned(rows, n), int8_buffers(bench, rows, k)
    phases = [
        *quantize_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_int8(ctx, weight, target, y, label="t"),
    ]
    bench.run(phases, rows)
    got = bench.download(y, rows, n)
    assert (got[4] == 0).all()
    expected = in_int8(x).astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got, expected) < 10 * TOLERANCE


def test_a_refusal_gives_the_reason(bench, rng) -> None:
    blocks, _ = stored_matrix(bench, rng, "Q4_K", Layout.ROW, (64, 256))
    raw, _ = random_tensor(rng, "Q4_K", Layout.COLUMN, (64, 256))
    columns = upload_weight(bench.arena, DTYPES["Q4_K"], Layout.COLUMN, (64, 256), raw, "weight")
    half, _ = stored_matrix(bench, rng, "F16", Layout.ROW, (64, 256))
    f32 = upload_weight(
        bench.arena, DTYPES["F32"], Layout.ROW, (8, 64), bytes(4 * 8 * 64), "weight"
    )
    few, many = bench.context(8), bench.context(9)
    assert [refusal(many, weight) for weight in (blocks, columns, half)] == [None] * 3
    said = "tiles need 9 token rows, and the pass has 8"
    assert [refusal(few, weight) for weight in (blocks, columns, half)] == [said] * 3
    assert refusal(many, replace(half, layout=Layout.COLUMN)) == (
        "its F16 values are stored column-major"
    )
    assert refusal(many, f32) == "no int8 tiles read F32"


@pytest.mark.parametrize("form", [("Q4_K", Layout.COLUMN), ("F16", Layout.ROW)], ids=str)
def test_a_matrix_that_is_not_rounded_to_rows_of_blocks_is_refused(bench, rng, form) -> None:
    dtype, layout = form
    raw, _ = random_tensor(rng, dtype, layout, (64, 256))
    weight = upload_weight(bench.arena, DTYPES[dtype], layout, (64, 256), raw, "weight")
    target = int8_buffers(bench, 9, 256)
    with pytest.raises(DeviceError, match="no int8 kernel"):
        matmul_int8(bench.context(9), weight, target, bench.poisoned(9, 64), label="t")


TWO_TEAMS = replace(TINY, teams=2)


@pytest.mark.parametrize(
    ("dtype", "rows", "outputs", "storage", "tile"),
    [
        ("Q4_K", 512, 14336, 49152, LARGE),
        ("Q4_K", 512, 14336, 10240, SMALL),
        ("Q4_K", 512, 8192, 49152, SMALL),
        ("Q4_K", 512, 1024, 49152, SMALL),
        ("Q4_K", 512, 512, 49152, TWO_TEAMS),
        ("Q4_K", 512, 512, 10240, TINY),
        ("Q4_K", 32, 32768, 49152, TINY),
        ("Q4_K", 32, 2048, 49152, TWO_TEAMS),
        ("Q4_K", 33, 32768, 49152, SMALL),
        ("Q4_K", 64, 8192, 49152, SMALL),
        ("Q4_K", 128, 8192, 49152, SMALL),
        ("Q4_K", 128, 4096, 49152, TWO_TEAMS),
    ],
)
def test_the_default_tile_depends_on_the_size_and_the_device(
    bench, dtype, rows, outputs, storage, tile
) -> None:
    ctx = on_device(bench.context(1), max_rows=rows, workgroup_storage=storage)
    assert choose_tile(ctx, FORMATS[dtype], outputs) == tile


@pytest.mark.parametrize(("threads", "teams"), [(512, 4), (256, 2), (128, 1)])
def test_few_tiles_are_shared_by_as_many_teams_as_the_device_has_threads(
    bench, threads, teams
) -> None:
    ctx = on_device(bench.context(1), max_rows=512, workgroup_storage=49152, max_threads=threads)
    assert choose_tile(ctx, FORMATS["Q4_K"], 512) == replace(TINY, teams=teams)
