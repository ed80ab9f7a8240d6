"""Tests of products on matrices of subgroups against float64 products with the same f16 rows.

No software adapter multiplies matrices, so here each thread multiplies elements. A device that has
the operation runs the same tests with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from rdrr_device.buffers import BufferSlice
from rdrr_device.dry_run import DryRunArena
from rdrr_device.shaders import WgslCompiler, for_compiler
from rdrr_format.dtypes import DTYPES
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.phases.products.fusion import AttentionSplits, RowNorm
from rdrr_runtime.phases.products.half_rows import HalfRows, half_rows, half_sizes
from rdrr_runtime.phases.products.matmul_subgroup import matmul_subgroup
from rdrr_runtime.phases.products.matmul_subgroup_tuning import SubgroupTile, choose_tile
from rdrr_runtime.phases.products.quantize_rows import padded_rows
from rdrr_runtime.phases.products.sum_splits import added_splits, sum_splits
from rdrr_runtime.phases.weights.gpu_weight import allocate_weight
from support.comparison import relative_error
from support.gpu import TOLERANCE, Bench, normal, stored_matrix
from support.lowered import WITH_MATRICES
from support.matrices import matrix_compiler, stating_matrices

TILES = {
    "four teams": SubgroupTile(32, 32, 64, 2, 2),
    "one team": SubgroupTile(16, 32, 64, 1, 1),
    "inputs shared": SubgroupTile(16, 32, 128, 1, 1, 4),
    "inputs and outputs shared": SubgroupTile(16, 32, 64, 1, 2, 2),
    "inputs split": SubgroupTile(16, 32, 64, 1, 1, splits=2),
    "loads ahead": SubgroupTile(16, 32, 64, 1, 1, ahead=2),
}
WEIGHTS = (
    ("Q4_K", Layout.ROW),
    ("Q6_K", Layout.ROW),
    ("Q8_0", Layout.ROW),
    ("F16", Layout.ROW),
    ("BF16", Layout.ROW),
    ("Q4_K", Layout.COLUMN),
    ("Q6_K", Layout.COLUMN),
)
"""A type for each way in which weights are read."""


def buffers(bench: Bench, max_rows: int, k: int) -> HalfRows:
    """Return buffers with all bits set, which are NaN in f16 and f32."""
    y, factors = (bench.upload(np.full(size, 0xFF, np.uint8)) for size in half_sizes(max_rows, k))
    return HalfRows(y, factors, padded_rows(max_rows), k)


def room(bench: Bench) -> Callable[[int], BufferSlice]:
    return lambda size: bench.upload(np.full(size, 0xFF, np.uint8))


def in_half(x: np.ndarray) -> np.ndarray:
    """Round rows to f16 after their largest magnitude has become at least 2^14."""
    most = np.abs(x).max(axis=1, keepdims=True)
    scale = 2.0 ** (14 - np.floor(np.log2(np.where(most > 0, most, 1))))
    return (x * scale).astype(np.float16).astype(np.float64) / scale


def check(bench, rng, dtype, layout, case, tile) -> None:
    rows, n, k = case
    weight, values = stored_matrix(bench, rng, dtype, layout, (n, k))
    x = normal(rng, rows, k) * (10.0 ** rng.integers(-6, 7, (rows, 1))).astype(np.float32)
    ctx, y, target = stating_matrices(bench, rows), bench.poisoned(rows, n), buffers(bench, rows, k)
    phases = [
        *half_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_subgroup(ctx, [weight], target, [y], tile=TILES[tile], room=room(bench), label="t"),
    ]
    bench.run(phases, rows)
    got = bench.download(y, rows, n)
    halves = (256 * values).astype(np.float16) if dtype != "F16" else values
    expected = in_half(x) @ halves.astype(np.float64).T / (1 if dtype == "F16" else 256)
    for row, wanted in zip(got, expected, strict=True):
        assert relative_error(row, wanted) < TOLERANCE
    exact = x.astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(got, exact) < 1e-3


@pytest.mark.parametrize(("dtype", "layout"), [("F16", Layout.ROW), ("Q6_K", Layout.COLUMN)])
def test_sums_of_workgroups_that_share_inputs_are_added(bench, rng, dtype, layout) -> None:
    check(bench, rng, dtype, layout, (17, 72, 380), "inputs split")


@pytest.mark.parametrize(("dtype", "layout"), WEIGHTS)
def test_every_way_of_reading_weights_equals_the_reference(bench, rng, dtype, layout) -> None:
    check(bench, rng, dtype, layout, (35, 67, 136), "four teams")


@pytest.mark.parametrize("biased", [False, True])
def test_the_splits_of_a_product_are_added_to_the_stream_before_its_norm(
    bench, rng, biased
) -> None:
    rows, most, k, splits = 5, 7, 200, 3
    x, sums = normal(rng, most, k), normal(rng, splits, most, k)
    gain, bias = normal(rng, k), normal(rng, k) * np.float32(biased)
    ctx, target = stating_matrices(bench, rows, most), buffers(bench, most, k)
    stream = bench.upload(x)
    (summing,) = sum_splits(
        ctx,
        bench.upload(sums),
        stream,
        splits=splits,
        n=k,
        bias=bench.upload(bias) if biased else None,
        accumulate=True,
        label="t",
    )
    added = added_splits(summing, stream)
    assert added is not None
    assert added_splits(summing, bench.upload(x)) is None
    norm = RowNorm(bench.upload(gain), 1e-5)
    bench.run(half_rows(ctx, stream, target, before=norm, added=added, label="t"), most)
    expected = x.astype(np.float64) + sums.sum(0) + bias
    got = bench.download(stream, most, k)
    assert relative_error(got[:rows], expected[:rows]) < TOLERANCE
    np.testing.assert_array_equal(got[rows:], x[rows:])
    normed = expected / np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-5) * gain
    halves = bench.download(target.y, target.rows * target.k_padded // 2).view(np.float16)
    halves = halves.reshape(target.rows, target.k_padded)[:rows, :k].astype(np.float32)
    halves *= bench.download(target.factors, target.rows)[:rows, None]
    assert relative_error(halves, normed[:rows]) < 1e-3


@pytest.mark.parametrize(("heads", "head_dim", "splits"), [(5, 48, 4), (8, 64, 1)])
def test_the_splits_of_attention_are_combined_as_they_are_rounded(
    bench, rng, heads, head_dim, splits
) -> None:
    rows, k = 9, heads * head_dim
    parts = normal(rng, rows, heads, splits, head_dim)
    scores, sums = (normal(rng, rows, heads, splits) for _ in range(2))
    sums = np.abs(sums) + np.float32(0.1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= (weights * sums).sum(-1, keepdims=True)
    expected = (parts * weights[..., None]).sum(2).reshape(rows, k)
    before = AttentionSplits(bench.upload(np.stack([scores, sums], -1)), splits, head_dim)
    ctx, target = stating_matrices(bench, rows), buffers(bench, rows, k)
    bench.run(half_rows(ctx, bench.upload(parts), target, before=before, label="t"), rows)
    factors = bench.download(target.factors, target.rows)[:rows, None]
    halves = bench.download(target.y, target.rows * target.k_padded // 2).view(np.float16)
    halves = halves.reshape(target.rows, target.k_padded)[:rows]
    assert not halves[:, k:].any()
    assert relative_error(halves[:, :k].astype(np.float32) * factors, expected) < 1e-3


@pytest.mark.parametrize(("dtype", "layout"), [("Q4_K", Layout.ROW), ("Q6_K", Layout.COLUMN)])
def test_steps_loaded_ahead_are_multiplied_in_order(bench, rng, dtype, layout) -> None:
    check(bench, rng, dtype, layout, (9, 35, 252), "loads ahead")


def test_odd_sizes_and_other_tiles_equal_the_reference(bench, rng) -> None:
    check(bench, rng, "F16", Layout.ROW, (17, 35, 100), "one team")


@pytest.mark.parametrize(
    ("dtype", "layout", "tile"),
    [
        ("F16", Layout.ROW, "inputs shared"),
        ("Q4_K", Layout.COLUMN, "inputs and outputs shared"),
    ],
)
def test_sums_of_subgroups_that_share_inputs_are_added(bench, rng, dtype, layout, tile) -> None:
    check(bench, rng, dtype, layout, (9, 40, 252), tile)


@pytest.mark.parametrize(
    ("layout", "tile"),
    [
        (Layout.ROW, "inputs split"),
        (Layout.COLUMN, "four teams"),
    ],
)
def test_matrices_of_several_types_share_a_launch(bench, rng, layout, tile) -> None:
    rows, k, sizes = (
        18,
        256,
        {"Q4_K": 40, "Q8_0" if layout is Layout.COLUMN else "F16": 35, "Q6_K": 65},
    )
    pairs = [stored_matrix(bench, rng, dtype, layout, (n, k)) for dtype, n in sizes.items()]
    n = sum(sizes.values())
    x, bias = normal(rng, rows, k), normal(rng, n)
    ctx, y, target = stating_matrices(bench, rows), bench.poisoned(rows, n), buffers(bench, rows, k)
    products = matmul_subgroup(
        ctx,
        [weight for weight, _ in pairs],
        target,
        [y],
        bias=bench.upload(bias),
        tile=TILES[tile],
        room=room(bench),
        label="t",
    )
    assert len(products) == TILES[tile].splits
    bench.run([*half_rows(ctx, bench.upload(x), target, label="t"), *products], rows)
    expected = x.astype(np.float64) @ np.concatenate([values for _, values in pairs]).T + bias
    assert relative_error(bench.download(y, rows, n), expected) < 1e-3


@pytest.mark.parametrize("biased", [False, True])
def test_matrices_that_share_a_launch_have_outputs_of_their_own(bench, rng, biased) -> None:
    rows, most, k, sizes = 18, 20, 256, {"Q4_K": 40, "F16": 35}
    pairs = [stored_matrix(bench, rng, dtype, Layout.ROW, (n, k)) for dtype, n in sizes.items()]
    x, bias = normal(rng, most, k), normal(rng, sum(sizes.values())) * np.float32(biased)
    ctx, target = stating_matrices(bench, rows, most), buffers(bench, most, k)
    ys = [bench.poisoned(most, n) for n in sizes.values()]
    (product,) = matmul_subgroup(
        ctx,
        [weight for weight, _ in pairs],
        target,
        ys,
        bias=bench.upload(bias) if biased else None,
        tile=TILES["four teams"],
        room=room(bench),
        label="t",
    )
    bench.run([*half_rows(ctx, bench.upload(x), target, label="t"), product], rows)
    for y, (weight, values), first in zip(ys, pairs, (0, 40), strict=True):
        got = bench.download(y, most, weight.n)
        expected = x[:rows].astype(np.float64) @ values.T + bias[first : first + weight.n]
        assert relative_error(got[:rows], expected) < 1e-3
        assert np.isnan(got[rows:]).all()


@pytest.mark.parametrize(("tile", "n"), [("four teams", 70), ("inputs split", 72)])
def test_bias_and_residual_are_added_and_rows_beyond_the_step_stay(bench, rng, tile, n) -> None:
    rows, k = 20, 72
    weight, values = stored_matrix(bench, rng, "Q8_0", Layout.ROW, (n, k))
    x, before, bias = normal(rng, 90, k), normal(rng, 90, n), normal(rng, n)
    ctx, y, target = stating_matrices(bench, rows, 90), bench.upload(before), buffers(bench, 90, k)
    phases = [
        *half_rows(ctx, bench.upload(x), target, label="t"),
        *matmul_subgroup(
            ctx,
            [weight],
            target,
            [y],
            bias=bench.upload(bias),
            accumulate=True,
            tile=TILES[tile],
            room=room(bench),
            label="t",
        ),
    ]
    bench.run(phases, 90)
    got = bench.download(y, 90, n)
    expected = x[:rows].astype(np.float64) @ values.astype(np.float64).T + bias + before[:rows]
    assert relative_error(got[:rows], expected) < 1e-3
    np.testing.assert_array_equal(got[rows:], before[rows:])


@pytest.mark.parametrize(
    ("case", "tile"),
    [
        ((16, 2048, 2048), (16, 32, 128)),
        ((32, 2048, 2048), (32, 32, 128)),
        ((32, 2048, 2112), (64, 64, 64)),  # steps of 128 do not divide the inputs
        ((128, 2048, 2048), (64, 32, 128)),
        ((128, 8192, 2048), (64, 64, 64)),
        ((512, 2048, 2048), (64, 64, 64)),
        ((512, 8192, 2048), (128, 128, 64)),
    ],
)
def test_small_tiles_are_for_few_rows_and_few_outputs(case, tile) -> None:
    rows, n, k = case
    arena = DryRunArena(WITH_MATRICES)
    ctx = OpContext(State.create(arena, rows, ring=4), rows, WITH_MATRICES)
    weight = allocate_weight(arena, DTYPES["F16"], Layout.ROW, (n, k), "w")
    chosen = choose_tile(ctx, [weight])
    assert (chosen.rows, chosen.outputs, chosen.step) == tile


@pytest.mark.parametrize(
    ("n", "k", "adds", "tile"),
    [
        (16384, 2048, False, (1, 2)),
        (2048, 2048, True, (4, 2)),
        (2048, 1536, True, (4, 1)),  # three steps a split
        (2048, 2304, True, (1, 2)),  # four splits do not divide the inputs
    ],
)
def test_few_rows_of_blocks_are_split_and_loaded_ahead_where_that_divides_the_inputs(
    n, k, adds, tile
) -> None:
    arena = DryRunArena(WITH_MATRICES)
    ctx = OpContext(State.create(arena, 32, ring=4), 32, WITH_MATRICES)
    weight = allocate_weight(arena, DTYPES["Q4_K"], Layout.ROW, (n, k), "w")
    chosen = choose_tile(ctx, [weight], adds=adds)
    assert (chosen.splits, chosen.ahead) == tile


@pytest.mark.parametrize(
    ("dtype", "layout", "n", "step"),
    [
        ("Q4_K", Layout.ROW, 14336, 32),
        ("Q4_K", Layout.ROW, 4096, 64),  # a tile for each multiprocessor
        ("Q4_K", Layout.COLUMN, 14336, 64),
        ("F16", Layout.ROW, 14336, 64),
    ],
)
def test_steps_are_short_where_each_multiprocessor_has_two_tiles(dtype, layout, n, step) -> None:
    arena, rows = DryRunArena(WITH_MATRICES), 512
    ctx = OpContext(State.create(arena, rows, ring=4), rows, WITH_MATRICES)
    chosen = choose_tile(ctx, [allocate_weight(arena, DTYPES[dtype], layout, (n, 4096), "w")])
    assert (chosen.rows, chosen.outputs, chosen.step) == (128, 128, step)


@pytest.mark.parametrize(
    ("rows", "n", "tile"),
    [
        (32, 8192, (32, 64, 1)),
        (32, 2048, (32, 32, 8)),
        (16, 8192, (16, 64, 1)),
        (9, 512, (16, 32, 8)),
    ],
)
def test_few_rows_of_columns_take_short_steps_shared_by_workgroups(rows, n, tile) -> None:
    arena = DryRunArena(WITH_MATRICES)
    ctx = OpContext(State.create(arena, rows, ring=4), rows, WITH_MATRICES)
    weight = allocate_weight(arena, DTYPES["Q4_K"], Layout.COLUMN, (n, 2048), "w")
    chosen = choose_tile(ctx, [weight])
    assert chosen.step == 64
    assert (chosen.rows, chosen.outputs, chosen.splits) == tile


@pytest.mark.parametrize(
    ("rows", "n", "k", "splits"),
    [(32, 2048, 8192, 4), (32, 2048, 2048, 1), (32, 8192, 8192, 1), (40, 2048, 8192, 1)],
)
def test_few_outputs_of_many_inputs_are_shared_by_workgroups(rows, n, k, splits) -> None:
    arena = DryRunArena(WITH_MATRICES)
    ctx = OpContext(State.create(arena, rows, ring=4), rows, WITH_MATRICES)
    weight = allocate_weight(arena, DTYPES["F16"], Layout.ROW, (n, k), "w")
    assert choose_tile(ctx, [weight]).splits == splits
    few = rows <= 32 and n == 2048  # the norm behind the stream adds splits for nothing
    assert choose_tile(ctx, [weight], adds=True).splits == (4 if few else 1)


@pytest.mark.parametrize(("dtype", "layout"), WEIGHTS)
def test_tint_accepts_the_product_on_matrices(dtype, layout) -> None:
    compiler = matrix_compiler()
    arena, (rows, n, k) = DryRunArena(WITH_MATRICES), (512, 8192, 256)
    ctx = OpContext(State.create(arena, rows, ring=4), rows, WITH_MATRICES)
    y, factors = (arena.empty("x", size) for size in half_sizes(rows, k))
    weight = allocate_weight(arena, DTYPES[dtype], layout, (n, k), "w")
    x, out = HalfRows(y, factors, rows, k), arena.empty("y", 8 * rows * n)
    room = partial(arena.empty, "sums")
    (phase,) = matmul_subgroup(ctx, [weight], x, [out], room=room, label="t")
    small = TILES["inputs split"]
    few, *_ = matmul_subgroup(ctx, [weight], x, [out], tile=small, room=room, label="t")
    compiler.create_shader_module(
        code=for_compiler(as_dispatch(few).kernel.source, WgslCompiler.TINT)
    )
    ahead = TILES["loads ahead"]
    (further,) = matmul_subgroup(ctx, [weight], x, [out], tile=ahead, room=room, label="t")
    compiler.create_shader_module(
        code=for_compiler(as_dispatch(further).kernel.source, WgslCompiler.TINT)
    )
    other = allocate_weight(arena, DTYPES["Q4_K"], layout, (n, k), "other")
    joined, *_ = matmul_subgroup(ctx, [weight, other], x, [out], tile=small, room=room, label="t")
    compiler.create_shader_module(
        code=for_compiler(as_dispatch(joined).kernel.source, WgslCompiler.TINT)
    )
    source = for_compiler(as_dispatch(phase).kernel.source, WgslCompiler.TINT)
    assert "subgroupMatrixMultiplyAccumulate" in source
    compiler.create_shader_module(code=source)
    with pytest.raises(Exception, match="subgroupMatrixStore"):
        compiler.create_shader_module(
            code=source.replace("row_major>(&tile_w, team", "(&tile_w, team")
        )
