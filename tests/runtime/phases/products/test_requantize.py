"""Tests of the requantization of matrices to Q8_0 rows, and of int8 products with its result."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.codecs import CODECS
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.exec.traffic import traffic
from rdrr_runtime.phases.products import requantize
from rdrr_runtime.phases.products.fusion import Output
from rdrr_runtime.phases.products.matmul_int8 import matmul_int8
from rdrr_runtime.phases.products.matvec_rows import matvec_rows, padded_batch_rows, refusal
from rdrr_runtime.phases.products.quantize_rows import (
    QuantizedRows,
    int8_sizes,
    padded_rows,
    quantize_rows,
)
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from rdrr_runtime.phases.products.requantize import (
    ROUNDED_TYPES,
    Requantized,
    requantized,
    scratch_bytes,
    shared_bytes,
    whole_bytes,
)
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight
from rdrr_runtime.phases.weights.packing import upload_weight
from support.comparison import relative_error
from support.gpu import F32, TOLERANCE, Bench, in_int8, normal, stored_matrix

BLOCKS = tuple(name for name, form in FORMATS.items() if not form.values)
LARGE = 1 << 30


def stored(
    bench: Bench, rng: np.random.Generator, dtype: str, n: int, k: int, **wanted: bool
) -> tuple[GpuWeight, F32]:
    layout = Layout.ROW if dtype in ROUNDED_TYPES else Layout.COLUMN
    return stored_matrix(bench, rng, dtype, layout, (n, k), **wanted)


def rows_of(bench: Bench, weight: GpuWeight, limit: int = LARGE) -> Requantized:
    scratch = bench.poisoned(scratch_bytes(weight, limit) // 4)
    return requantized(weight, scratch, limit, label="t")


def values_of(bench: Bench, rounded: Requantized) -> F32:
    """Run the only phase and return the rows that it writes, dequantized."""
    (phase,), weight = rounded.phases, rounded.weight
    bench.run([phase], 1)
    words = bench.device.read(weight.parts[0].slice).view(np.uint8)
    offset = 16 * (weight.plane_offsets(weight.parts[0]).scales or 0)
    codes = words[:offset].view(np.int8).reshape(weight.n, -1, 32).astype(np.float32)
    scales = words[offset:].view(np.float32)[: codes[..., 0].size].reshape(codes.shape[:2])
    return (codes * scales[..., None]).reshape(weight.n, -1)[:, : weight.k]


def small_batch(
    bench: Bench,
    rounded: Requantized,
    x: F32,
    *,
    bias: F32 | None = None,
    before: F32 | None = None,
    halves: bool = False,
) -> F32:
    """Return what `product` does, by the kernel of small batches."""
    rows, k = x.shape
    ctx, n = bench.context(rows), rounded.weight.n
    assert refusal(ctx, (rounded.weight,)) is None
    q = bench.upload(np.full(small_batch_bytes(padded_batch_rows(rows), k), 0xFF, np.uint8))
    y = bench.poisoned(rows, n) if before is None else bench.upload(before)
    output = Output(
        (y,), "store" if before is None else "add", None if bias is None else bench.upload(bias)
    )
    products = matvec_rows(ctx, (rounded.weight,), q, output, halves=halves, label="t")
    quantized = quantize_small_batch(ctx, bench.upload(x), q, k=k, halves=halves, label="t")
    bench.run([*quantized, *rounded.before(products)], rows)
    return bench.download(y, rows, n)


def product(
    bench: Bench,
    rounded: Requantized,
    x: F32,
    *,
    bias: F32 | None = None,
    before: F32 | None = None,
    halves: bool = False,
) -> F32:
    """Return x W^T (+ bias) (+ before) with the requantized matrix."""
    rows, k = x.shape
    n = rounded.weight.n
    q, scales = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in int8_sizes(rows, k))
    target = QuantizedRows(q, scales, padded_rows(rows), k, halves)
    y = bench.poisoned(rows, n) if before is None else bench.upload(before)
    products = matmul_int8(
        bench.context(rows),
        rounded.weight,
        target,
        y,
        bias=None if bias is None else bench.upload(bias),
        accumulate=before is not None,
        label="t",
    )
    quantized = quantize_rows(bench.context(rows), bench.upload(x), target, label="t")
    bench.run([*quantized, *rounded.before(products)], rows)
    return bench.download(y, rows, n)


@pytest.mark.parametrize("dtype", [*BLOCKS, *ROUNDED_TYPES])
def test_each_32_inputs_are_rounded_to_int8_with_a_scale(bench, rng, dtype) -> None:
    weight, values = stored(bench, rng, dtype, 131, 384)
    got, expected = values_of(bench, rows_of(bench, weight)), in_int8(values)
    unit = np.repeat(np.abs(values).reshape(131, -1, 32).max(axis=2), 32, axis=1) / 127
    # A code may differ by one where the weight is halfway between two codes.
    assert (np.abs(got - values) <= 0.5001 * unit + 1e-12).all()
    assert (np.abs(got - expected) <= 1e-5 * np.abs(expected)).mean() > 0.99


@pytest.mark.parametrize("product", [product, small_batch])
@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K"])
def test_a_matrix_with_the_units_first_is_rounded_to_rows(bench, rng, dtype, product) -> None:
    weight, values = stored(bench, rng, dtype, 131, 384, units_first=True)
    rounded, x = rows_of(bench, weight), normal(rng, 9, 384)
    assert weight.form.units_first
    assert not rounded.weight.form.units_first
    expected = in_int8(x).astype(np.float64) @ in_int8(values).astype(np.float64).T
    assert relative_error(product(bench, rounded, x), expected) < 20 * TOLERANCE


@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K", "Q5_1", "F16"])
@pytest.mark.parametrize("case", [(3, 67, 36), (9, 131, 1216)])
@pytest.mark.parametrize("product", [product, small_batch])
def test_a_product_with_odd_sizes_equals_the_reference(bench, rng, dtype, case, product) -> None:
    rows, n, k = case
    weight, values = stored(bench, rng, dtype, n, k)
    x, halves = normal(rng, rows, k), weight.by_column
    rounded = in_int8(x, 16 if halves else 32).astype(np.float64)
    expected = rounded @ in_int8(values).astype(np.float64).T
    got = product(bench, rows_of(bench, weight), x, halves=halves)
    assert relative_error(got, expected) < 20 * TOLERANCE


def test_a_device_without_optional_features_equals_the_reference(plain_bench, rng) -> None:
    weight, values = stored(plain_bench, rng, "Q4_K", 67, 384)
    x = normal(rng, 12, 384)
    expected = in_int8(x).astype(np.float64) @ in_int8(values).astype(np.float64).T
    got = product(plain_bench, rows_of(plain_bench, weight), x)
    assert relative_error(got, expected) < 20 * TOLERANCE


@pytest.mark.parametrize("dtype", ["Q4_K", "F16"])
@pytest.mark.parametrize("stored_limit", [LARGE, 512 * 300])
@pytest.mark.parametrize("product", [product, small_batch])
def test_a_matrix_beyond_the_shared_buffer_is_multiplied_in_parts(
    bench, rng, monkeypatch, stored_limit, dtype, product
) -> None:
    n, k = 1100, 256
    monkeypatch.setattr(type(bench.arena), "max_binding", stored_limit)
    weight, values = stored(bench, rng, dtype, n, k)
    monkeypatch.undo()
    assert (len(weight.parts) > 1) is (stored_limit < LARGE)
    limit = FORMATS["Q8_0"].size(416, k // 64)  # no whole number of super-blocks
    rounded = rows_of(bench, weight, limit)
    assert len(rounded.phases) > 2
    assert all(part.slice.size <= limit for part in rounded.weight.parts)
    x, bias, before = normal(rng, 12, k), normal(rng, n), normal(rng, 12, n)
    expected = in_int8(x).astype(np.float64) @ in_int8(values).astype(np.float64).T
    got = product(bench, rounded, x, bias=bias, before=before)
    assert relative_error(got, expected + bias + before) < 20 * TOLERANCE


@pytest.mark.parametrize("dtype", ["F16", "Q4_K"])
def test_the_phases_of_a_matrix_in_parts_read_it_once(bench, rng, dtype) -> None:
    weight, _ = stored(bench, rng, dtype, 1024, 256)
    whole = rows_of(bench, weight).phases
    assert [traffic(phase, 9, 0) for phase in whole] == [weight.size]
    parts = rows_of(bench, weight, limit=FORMATS["Q8_0"].size(256, 4)).phases
    assert [traffic(part, 9, 0) for part in parts] == [weight.size // 4] * 4


def test_the_shared_buffer_is_as_large_as_the_largest_part_of_a_matrix(bench, monkeypatch) -> None:
    weight = upload_weight(
        bench.arena,
        DTYPES["Q8_0"],
        Layout.COLUMN,
        (320, 100),
        CODECS["Q8_0"].quantize(np.zeros((100, 320), np.float32)),
        "weight",
    )
    assert scratch_bytes(weight, LARGE) == FORMATS["Q8_0"].size(320, 2)
    monkeypatch.setattr(requantize, "SCRATCH_BYTES", FORMATS["Q8_0"].size(256, 2))
    assert scratch_bytes(weight, LARGE) == FORMATS["Q8_0"].size(256, 2)


def test_the_shared_buffer_has_room_for_several_small_matrices(bench, rng) -> None:
    small, large = (stored(bench, rng, "Q4_K", n, 256)[0] for n in (96, 1024))
    room = shared_bytes([small, large], LARGE)
    assert sum(map(whole_bytes, [large, large, large])) <= room
    assert shared_bytes([small, large], whole_bytes(small)) == whole_bytes(small)
    assert shared_bytes([], LARGE) == 0


def test_a_matrix_is_not_divided_where_it_fits_as_a_whole(bench, rng) -> None:
    for n in (32, 40, 63, 65):
        weight, _ = stored(bench, rng, "F16", n, 256)
        assert len(rows_of(bench, weight, whole_bytes(weight)).phases) == 1
    weight, _ = stored(bench, rng, "F16", 40, 256)
    exact = FORMATS["Q8_0"].size(40, 4)  # the control: there is only room for whole items
    assert len(rows_of(bench, weight, exact).phases) == 2


def test_weights_that_are_zero_have_scale_zero(bench, rng) -> None:
    values = normal(rng, 64, 128)
    values[5] = 0
    values[:, 32:64] = 0
    raw = CODECS["Q8_0"].quantize(np.ascontiguousarray(values.T))
    weight = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.COLUMN, (64, 128), raw, "weight")
    got = values_of(bench, rows_of(bench, weight))
    assert (got[5] == 0).all()
    assert (got[:, 32:64] == 0).all()
    assert (got[6, :32] != 0).any()
