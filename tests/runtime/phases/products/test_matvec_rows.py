"""Tests of small-batch int8 products against float64 products with the same quantized rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import Grid
from rdrr_runtime.phases.products import matvec_rows_tuning
from rdrr_runtime.phases.products.fusion import AttentionSplits, Output, RowNorm
from rdrr_runtime.phases.products.matmul_int8 import TYPES
from rdrr_runtime.phases.products.matvec_rows import (
    can_normalise,
    can_quantize_output,
    matvec_rows,
    padded_batch_rows,
    refusal,
)
from rdrr_runtime.phases.products.matvec_rows_tuning import (
    HEAD_OUTPUTS,
    HEAD_WORKGROUPS,
    RowsTuning,
)
from rdrr_runtime.phases.products.quantize_small_batch import (
    quantize_small_batch,
    small_batch_bytes,
)
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight, allocate_weight
from rdrr_runtime.phases.weights.packing import upload_weight
from support.comparison import relative_error
from support.gpu import (
    F32,
    TOLERANCE,
    Bench,
    in_int8,
    normal,
    on_device,
    random_tensor,
    stored_matrix,
)

EPS = 1e-5
CLOSE = 10 * TOLERANCE
SCALINGS = ("Q8_0", "Q4_K", "Q6_K")
"""One weight type for each way in which codes are scaled."""


def stored(
    bench: Bench, rng: np.random.Generator, dtype: str, n: int, k: int, **wanted: bool
) -> tuple[GpuWeight, npt.NDArray[np.float64]]:
    weight, values = stored_matrix(bench, rng, dtype, Layout.ROW, (n, k), **wanted)
    return weight, values.astype(np.float64)


def int8_buffer(bench: Bench, rows: int, k: int) -> BufferSlice:
    """Return a buffer with all bits set: NaN scales make reads of unwritten data noticeable."""
    size = small_batch_bytes(padded_batch_rows(rows), k)
    return bench.upload(np.full(size, 0xFF, np.uint8))


def quantized(
    bench: Bench, ctx, x: F32, norm: RowNorm | None = None, *, halves: bool = False
) -> tuple[BufferSlice, list]:
    target = int8_buffer(bench, *x.shape)
    made = quantize_small_batch(
        ctx, bench.upload(x), target, k=x.shape[1], before=norm, halves=halves, label="t"
    )
    return target, made


def errors(
    bench: Bench,
    rng: np.random.Generator,
    weight: tuple[GpuWeight, F32],
    rows: int,
    tuning: RowsTuning | None = None,
) -> float:
    """Return the largest relative error of a product with `rows` rows."""
    matrix, values = weight
    x, ctx = normal(rng, rows, matrix.k), bench.context(rows)
    y = bench.poisoned(rows, matrix.n)
    assert refusal(ctx, (matrix,)) is None
    target, phases = quantized(bench, ctx, x)
    phases += matvec_rows(ctx, (matrix,), target, Output((y,)), label="t", tuning=tuning)
    bench.run(phases, rows)
    expected = in_int8(x).astype(np.float64) @ values.T
    return relative_error(bench.download(y, rows, matrix.n), expected)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        pytest.param("Q8_0", (30, 160), marks=pytest.mark.thorough),
        ("Q4_K", (89, 608)),
        pytest.param("Q6_K", (64, 288), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_every_number_of_rows_equals_the_reference(bench, rng, dtype, shape) -> None:
    weight = stored(bench, rng, dtype, *shape)
    for rows in (*range(2, 18), 32):
        # A code of x may differ by one if x is halfway between two codes.
        assert errors(bench, rng, weight, rows) < CLOSE, rows


@pytest.mark.parametrize("dtype", TYPES)
def test_every_weight_type_equals_the_reference(bench, rng, dtype) -> None:
    assert errors(bench, rng, stored(bench, rng, dtype, 67, 36), 5) < CLOSE


@pytest.mark.parametrize("dtype", SCALINGS)
def test_a_matrix_with_the_units_first_gives_the_same_product(bench, rng, dtype) -> None:
    weight = stored(bench, rng, dtype, 67, 320, units_first=True)
    assert errors(bench, rng, weight, 5) < CLOSE


@pytest.mark.parametrize(
    ("tuning", "dtype", "rows"),
    [
        (RowsTuning(64, 1, 1), "Q8_0", 3),
        (RowsTuning(128, 2, 4), "Q4_K", 7),
        (RowsTuning(64, 4, 2, ahead=1, rows=4), "Q6_K", 13),
        (RowsTuning(64, 4, 2, ahead=1, rows=4), "Q4_K", 3),
        # A team is a whole subgroup of the software adapter.
        (RowsTuning(64, 8, 1), "Q6_K", 7),
        (RowsTuning(128, 32, 2, staged=1), "Q4_K", 13),
        (RowsTuning(128, 32, 2, staged=1), "Q8_0", 7),
        (RowsTuning(64, 4, 2, rows=4, groups=4), "Q8_0", 13),
        (RowsTuning(128, 16, 4, ahead=1, rows=2, groups=2), "Q6_K", 3),
        (RowsTuning(64, 4, 2, rows=4, groups=2, staged=1), "Q4_K", 19),
        (RowsTuning(128, 64, 2, rows=8, groups=2), "Q4_K", 13),
        (RowsTuning(64, 8, 2, ahead=1, staged=1, workgroups=3), "Q6_K", 7),
        (RowsTuning(64, 8, 2, workgroups=3), "Q4_K", 13),
        (RowsTuning(64, 64, 2, rows=8, workgroups=2), "Q6_K", 7),
        (RowsTuning(64, 8, 1, ahead=1, rows=8, staged=3), "Q4_K", 7),
        (RowsTuning(64, 8, 2, rows=4, groups=2, staged=2, workgroups=3), "Q6_K", 5),
    ],
    ids=str,
)
def test_every_tuning_gives_the_same_result(bench, rng, tuning, dtype, rows) -> None:
    weight = stored(bench, rng, dtype, 67, 320)
    assert errors(bench, rng, weight, rows, tuning) < CLOSE


@pytest.mark.parametrize("workgroups", [0, 2])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("lanes", [4, 8])
def test_the_subgroups_of_a_team_add_up_their_sums(
    any_bench, rng, monkeypatch, lanes, groups, workgroups
):
    # The software adapter has subgroups of 8 threads, fewer than teams have by default.
    monkeypatch.setattr(matvec_rows_tuning, "SUBGROUP", lanes)
    weight = stored(any_bench, rng, "Q4_K", 67, 1100)
    tuning = RowsTuning(64, 16, 2, rows=4, groups=groups, workgroups=workgroups)
    assert tuning.lanes == lanes
    assert errors(any_bench, rng, weight, 7, tuning) < CLOSE


def test_a_pass_of_few_rows_has_no_threads_for_more() -> None:
    tuning = RowsTuning(256, 32, 2, rows=8, groups=4)
    assert (tuning.item_rows, tuning.item_outputs) == (32, 4)
    fewer = tuning.for_rows(13)
    assert (fewer.rows, fewer.groups, fewer.item_outputs) == (8, 2, 8)
    fewest = tuning.for_rows(3)
    assert (fewest.rows, fewest.groups, fewest.item_outputs) == (4, 1, 16)


@pytest.mark.parametrize(
    ("rows", "kib", "kind", "times"),
    [
        (8, 16, "add", 1),
        (32, 16, "add", 1),
        (8, 48, "gate", 1),
        (16, 48, "gate", 1),
        (32, 48, "gate", 2),  # for each 16 rows whose inputs are staged
        (16, 16, "gate", 2),  # for each 8, if no more can be staged
        (32, 16, "gate", 1),  # in groups that stage nothing
    ],
)
def test_the_rows_that_read_a_weight_together(bench, rng, rows, kib, kind, times) -> None:
    ctx, k = on_device(bench.context(rows), workgroup_storage=1024 * kib), 640
    weight, _ = stored(bench, rng, "Q4_K", 256, k)
    int8 = kind == "gate"
    y = bench.poisoned(rows, 256)
    output = Output((y,), kind, activation="silu" if int8 else "", int8=int8)
    weights = (weight, weight) if int8 else (weight,)
    (phase,) = matvec_rows(ctx, weights, int8_buffer(bench, rows, k), output, label="t")
    assert phase.work.count(rows) == times * phase.work.count(1)


@pytest.mark.parametrize(
    ("rows", "kib", "outputs", "shared"),
    [
        (8, 48, HEAD_OUTPUTS, True),
        (16, 48, HEAD_OUTPUTS, True),
        (16, 16, HEAD_OUTPUTS, False),  # the inputs do not fit
        (32, 48, HEAD_OUTPUTS, False),  # the same
        (8, 48, HEAD_OUTPUTS // 2, False),  # too few outputs for several items of a workgroup
    ],
)
def test_the_workgroups_of_a_head_stage_the_inputs_once(bench, rows, kib, outputs, shared) -> None:
    ctx = on_device(bench.context(rows), workgroup_storage=1024 * kib, max_threads=1024)
    weight = allocate_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (outputs, 640), "head")
    y = bench.arena.empty("y", 4 * rows * outputs)
    (phase,) = matvec_rows(ctx, (weight,), int8_buffer(bench, rows, 640), Output((y,)), label="t")
    assert phase.record.looped == shared
    assert (phase.work.items == HEAD_WORKGROUPS) == shared


def test_the_code_of_several_targets_is_kept_short(bench, rng) -> None:
    rows, k = 32, 256
    weight, _ = stored(bench, rng, "Q4_K", 64, k)
    x, ctx = int8_buffer(bench, rows, k), bench.context(rows)

    def sums_of_a_thread(targets: int) -> int:
        y = bench.poisoned(rows, 64 * targets)
        phases = matvec_rows(ctx, (weight,) * targets, x, Output((y,)), label="t")
        record = phases[0].record
        return record.rows * record.outputs

    assert sums_of_a_thread(3) < sums_of_a_thread(1)


@pytest.mark.parametrize("separate", [False, True], ids=["one matrix", "two matrices"])
@pytest.mark.parametrize("pairs", [1, 2])
def test_gate_and_up_are_combined_after_a_norm(any_bench, rng, separate, pairs) -> None:
    rows, n, k = 5, 37, 288
    x, gain = normal(rng, rows, k), normal(rng, k)
    root = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS)
    near = in_int8((x / root * (1.0 + gain)).astype(np.float32)).astype(np.float64)
    pairs_stored = [stored(any_bench, rng, "Q4_K", n if separate else 2 * n, k)]
    pairs_stored += [stored(any_bench, rng, "Q6_K", n, k)] if separate else []
    products = np.concatenate([near @ values.T for _, values in pairs_stored], axis=1)
    gate, up = products[:, :n], products[:, n:]
    ctx, y = any_bench.context(rows), any_bench.poisoned(rows, n)
    norm = RowNorm(any_bench.upload(gain), EPS, 1.0)
    target, launches = quantized(any_bench, ctx, x, norm)
    output = Output((y,), "gate", activation="silu")
    weights, tuning = tuple(weight for weight, _ in pairs_stored), RowsTuning(64, 4, 2 * pairs)
    launches += matvec_rows(ctx, weights, target, output, label="t", tuning=tuning)
    any_bench.run(launches, rows)
    result = any_bench.download(y, rows, n)
    # Twice as many codes may differ by one, because the norm is rounded in another order.
    assert relative_error(result, gate / (1 + np.exp(-gate)) * up) < 2 * CLOSE


@pytest.mark.parametrize(("rows", "max_rows"), [(2, 2), (2, 3), (5, 8)])
def test_on_a_grid_the_rows_of_the_step_are_normalised_as_they_are_staged(
    any_bench, rng, rows, max_rows
) -> None:
    n, k = 67, 288
    x, gain = normal(rng, max_rows, k), normal(rng, k)
    root = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True) + EPS)
    near = in_int8((x / root * (1.0 + gain)).astype(np.float32)).astype(np.float64)
    weight, values = stored(any_bench, rng, "Q4_K", n, k)
    ctx = replace(any_bench.context(rows, max_rows=max_rows), grid=Grid(512, 2))
    y, norm = any_bench.poisoned(max_rows, n), RowNorm(any_bench.upload(gain), EPS, 1.0)
    operands = (weight,), any_bench.upload(x), Output((y,))
    any_bench.run(matvec_rows(ctx, *operands, before=norm, label="t"), max_rows)
    result = any_bench.download(y, max_rows, n)
    assert relative_error(result[:rows], near[:rows] @ values.T) < 2 * CLOSE
    assert np.isnan(result[rows:]).all()


@pytest.mark.parametrize(
    ("rows", "k", "matrices", "grid", "fits"),
    [
        (8, 512, 1, Grid(512, 132), True),
        (8, 2048, 1, Grid(512, 132), False),  # too many elements for a thread
        (4, 2048, 1, Grid(512, 132), True),
        (4, 2048, 1, None, False),
        (4, 512, 2, Grid(512, 132), True),
        (4, 512, 3, Grid(512, 132), False),  # a buffer more than devices bind
    ],
)
def test_rows_are_normalised_as_they_are_staged_where_that_pays(
    bench, rows, k, matrices, grid, fits
) -> None:
    weight = allocate_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (64, k), "w")
    output = Output((bench.poisoned(rows, 64),) * matrices)
    ctx = replace(bench.context(rows), grid=grid)
    assert can_normalise(ctx, (weight,) * matrices, output) == fits


@pytest.mark.parametrize("k", [96, 2304])
def test_on_a_grid_outputs_are_added_to_the_residual(any_bench, rng, k) -> None:
    rows, n = 5, 67
    weight, values = stored(any_bench, rng, "Q6_K", n, k)
    x, before = normal(rng, rows, k), normal(rng, rows, n)
    ctx, y = replace(any_bench.context(rows), grid=Grid(256, 2)), any_bench.upload(before)
    target, phases = quantized(any_bench, ctx, x)
    phases += matvec_rows(ctx, (weight,), target, Output((y,), "add"), label="t")
    assert phases[-1].record.early
    assert (phases[-1].record.staged > 1) == (k == 2304)
    any_bench.run(phases, rows)
    expected = before + in_int8(x).astype(np.float64) @ values.T
    assert relative_error(any_bench.download(y, rows, n), expected) < CLOSE


@pytest.mark.parametrize(
    ("rows", "dtype", "halves"),
    [(2, "Q4_K", False), (5, "Q4_K", False), (8, "Q8_0", True), (19, "Q4_K", False)],
)
def test_gated_pairs_can_be_passed_on_in_int8(bench, rng, rows, dtype, halves) -> None:
    hidden, inner, n = 256, 192, 35
    gates, gate_values = stored(bench, rng, dtype, inner, hidden)
    ups, up_values = stored(bench, rng, dtype, inner, hidden)
    downs, down_values = stored(bench, rng, dtype, n, inner)
    x, ctx, y = normal(rng, rows, hidden), bench.context(rows), bench.poisoned(rows, n)
    assert can_quantize_output(ctx, inner)
    assert not can_quantize_output(ctx, inner + 32)
    target, launches = quantized(bench, ctx, x, halves=halves)
    gate_output = int8_buffer(bench, rows, inner)
    output = Output((gate_output,), "gate", activation="silu", int8=True, halves=halves)
    launches += matvec_rows(ctx, (gates, ups), target, output, halves=halves, label="t")
    launches += matvec_rows(ctx, (downs,), gate_output, Output((y,)), halves=halves, label="t")
    bench.run(launches, rows)
    group = 16 if halves else 32
    near = in_int8(x, group).astype(np.float64)
    gate, up = near @ gate_values.T, near @ up_values.T
    pairs = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    between = in_int8(pairs, group).astype(np.float64)
    # A code may differ by one, because its value is summed in another order.
    result = bench.download(y, rows, n)
    assert relative_error(result, between @ down_values.T) < 5 * CLOSE


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_the_products_behind_a_broken_output_of_a_gate_in_int8_are_not_finite(
    bench, rng, broken
) -> None:
    (down, _), (gates, _) = (
        stored(bench, rng, "Q4_K", 35, 192),
        stored(bench, rng, "Q8_0", 192, 256),
    )
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (192, 256))
    ctx, x = bench.context(2), normal(rng, 2, 256)

    def products() -> np.ndarray:
        ups = upload_weight(bench.arena, DTYPES["Q8_0"], Layout.ROW, (192, 256), raw, "up")
        target, phases = quantized(bench, ctx, x)
        y, between = bench.poisoned(2, 35), int8_buffer(bench, 2, 192)
        output = Output((between,), "gate", activation="silu", int8=True)
        phases += matvec_rows(ctx, (gates, ups), target, output, label="t")
        phases += matvec_rows(ctx, (down,), between, Output((y,)), label="t")
        bench.run(phases, 2)
        return bench.download(y, 2, 35)

    assert np.isfinite(products()).all()
    blocks = raw.reshape(-1, 34)
    blocks[rng.integers(len(blocks)), :2].view("<f2")[:] = broken  # the scale of 32 weights of up
    assert not np.isfinite(products()).any()


def three_matrices(
    bench: Bench, rng: np.random.Generator, rows: int
) -> tuple[tuple[GpuWeight, ...], BufferSlice, list, np.ndarray]:
    """Return three matrices, the buffer of int8 rows, the phases that fill it, and the products."""
    k = 320
    matrices = [
        stored(bench, rng, *type_and_n, k)
        for type_and_n in (("Q4_K", 70), ("Q8_0", 5), ("Q6_K", 33))
    ]
    x = normal(rng, rows, k)
    target, phases = quantized(bench, bench.context(rows), x)
    near = in_int8(x).astype(np.float64)
    products = np.concatenate([near @ values.T for _, values in matrices], axis=1)
    return tuple(weight for weight, _ in matrices), target, phases, products


def test_matrices_of_several_types_share_a_phase(bench, rng) -> None:
    rows = 3
    weights, target, phases, expected = three_matrices(bench, rng, rows)
    ys = tuple(bench.poisoned(rows, weight.n) for weight in weights)
    phases += matvec_rows(bench.context(rows), weights, target, Output(ys), label="t")
    assert len(phases[-1].bindings) == 8
    bench.run(phases, rows)
    outputs = [bench.download(y, rows, weight.n) for y, weight in zip(ys, weights, strict=True)]
    assert relative_error(np.concatenate(outputs, axis=1), expected) < CLOSE


def test_outputs_and_biases_of_several_matrices_may_lie_side_by_side(bench, rng) -> None:
    rows = 3
    weights, target, phases, expected = three_matrices(bench, rng, rows)
    y, bias = bench.poisoned(rows, 108), normal(rng, 108)
    output = Output((y,), bias=bench.upload(bias))
    phases += matvec_rows(bench.context(rows), weights, target, output, label="t")
    bench.run(phases, rows)
    assert relative_error(bench.download(y, rows, 108), expected + bias) < CLOSE


def test_two_matrices_with_a_bias_write_separate_outputs(bench, rng) -> None:
    rows = 3
    weights, target, phases, expected = three_matrices(bench, rng, rows)
    ys, bias = tuple(bench.poisoned(rows, weight.n) for weight in weights[:2]), normal(rng, 75)
    output = Output(ys, bias=bench.upload(bias))
    phases += matvec_rows(bench.context(rows), weights[:2], target, output, label="t")
    bench.run(phases, rows)
    outputs = [bench.download(y, rows, weight.n) for y, weight in zip(ys, weights[:2], strict=True)]
    assert relative_error(np.concatenate(outputs, axis=1), expected[:, :75] + bias) < CLOSE


def test_more_buffers_than_every_device_binds_are_refused(bench, rng) -> None:
    rows = 3
    weights, target, _, _ = three_matrices(bench, rng, rows)
    ys = tuple(bench.poisoned(rows, weight.n) for weight in weights)
    ctx, output = bench.context(rows), Output(ys, bias=bench.upload(normal(rng, 108)))
    assert refusal(ctx, weights, apart=True) is None
    assert refusal(ctx, weights, bias=True) is None
    assert "would bind 9 buffers" in (refusal(ctx, weights, apart=True, bias=True) or "")
    assert "3 matrices, and there are 4" in (refusal(ctx, (*weights, weights[0])) or "")
    with pytest.raises(ValueError, match="binds 9 buffers"):
        matvec_rows(ctx, weights, target, output, label="t")


def test_rows_beyond_the_step_are_left_unchanged_and_others_are_added_to_the_residual(
    bench, rng
) -> None:
    max_rows, rows, n, k = 20, 17, 34, 256
    weight, values = stored(bench, rng, "Q4_K", n, k)
    x, before = normal(rng, max_rows, k), normal(rng, max_rows, n)
    ctx, y = bench.context(rows, max_rows=max_rows), bench.upload(before)
    target, launches = quantized(bench, ctx, x)
    launches += matvec_rows(ctx, (weight,), target, Output((y,), "add"), label="t")
    bench.run(launches, max_rows)
    result, expected = bench.download(y, max_rows, n), before.astype(np.float64)
    expected[:rows] += in_int8(x[:rows]).astype(np.float64) @ values.T
    assert relative_error(result, expected) < CLOSE
    assert np.array_equal(result[rows:], before[rows:])


def test_splits_of_attention_are_combined_before_they_are_quantized(any_bench, rng) -> None:
    rows, n, heads, splits, with_keys, head_dim = 3, 34, 5, 4, 3, 48
    k = heads * head_dim
    partials, stats = (
        normal(rng, rows, heads, splits, head_dim),
        normal(rng, rows, heads, splits, 2),
    )
    stats[..., 1] = np.abs(stats[..., 1]) + 0.1
    factor = np.exp(stats[:, :, :with_keys, 0] - stats[:, :, :with_keys, 0].max(2, keepdims=True))
    denominator = (factor * stats[:, :, :with_keys, 1]).sum(2)
    x = (partials[:, :, :with_keys] * factor[..., None]).sum(2) / denominator[..., None]
    partials[:, :, with_keys:] = np.nan  # uninitialised sums must not be read
    stats[:, :, with_keys:] = (-3e38, 0.0)
    weight, values = stored(any_bench, rng, "Q8_0", n, k)
    ctx, y = any_bench.context(rows), any_bench.poisoned(rows, n)
    target = int8_buffer(any_bench, rows, k)
    given = AttentionSplits(any_bench.upload(stats), splits, head_dim)
    launches = [
        *quantize_small_batch(
            ctx, any_bench.upload(partials), target, k=k, before=given, label="t"
        ),
        *matvec_rows(ctx, (weight,), target, Output((y,)), label="t"),
    ]
    any_bench.run(launches, rows)
    expected = in_int8(x.reshape(rows, k)).astype(np.float64) @ values.T
    assert relative_error(any_bench.download(y, rows, n), expected) < 2 * CLOSE


def test_a_row_of_zeros_gives_zeros(bench, rng) -> None:
    rows, n, k = 4, 33, 256
    weight, _ = stored(bench, rng, "Q4_K", n, k)
    x = normal(rng, rows, k)
    x[2] = 0
    ctx, y = bench.context(rows), bench.poisoned(rows, n)
    target, launches = quantized(bench, ctx, x)
    launches += matvec_rows(ctx, (weight,), target, Output((y,)), label="t")
    bench.run(launches, rows)
    result = bench.download(y, rows, n)
    assert (result[2] == 0).all()
    assert result[[0, 1, 3]].any(axis=1).all()


def test_a_refusal_gives_the_reason(bench, rng) -> None:
    weight, _ = stored(bench, rng, "Q4_K", 8, 256)
    half, _ = stored(bench, rng, "F16", 8, 256)
    ctx = bench.context(2)
    assert refusal(ctx, (weight,)) is None

    def refused(*weights: GpuWeight, ctx=ctx) -> str:
        return refusal(ctx, weights) or "not refused"

    assert refused(half) == "F16 has no codes that could be multiplied in int8"
    assert "the pass has 1" in refused(weight, ctx=bench.context(1))
    assert "2 to 32 token rows" in refused(weight, ctx=replace(ctx, max_rows=33))
    assert "the pass has f16" in refused(weight, ctx=replace(ctx, values="f16"))
    assert refused(weight, replace(weight, k=512)).endswith("256 and 512")
    assert "column-major" in refused(replace(weight, layout=Layout.COLUMN))
