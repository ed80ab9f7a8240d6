"""Tests of the embedding: look up, dequantize and scale rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rdrr_format.dtypes import DTYPES
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.rows.embed import embed
from rdrr_runtime.phases.rows.interpolate import interpolate
from rdrr_runtime.phases.rows.position_embed import position_embed
from rdrr_runtime.phases.weights.formats import FORMATS
from rdrr_runtime.phases.weights.packing import upload_weight
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal, random_tensor


@pytest.mark.parametrize(
    ("dtype", "hidden"),
    [*((dtype, 576) for dtype in FORMATS), ("Q4_K", 256), ("Q6_K", 384), ("F16", 256)],
)
def test_rows_of_every_type_are_dequantized(bench, rng, dtype, hidden) -> None:
    raw, values = random_tensor(rng, dtype, Layout.ROW, (50, hidden))
    table = upload_weight(bench.arena, DTYPES[dtype], Layout.ROW, (50, hidden), raw, "table")
    tokens = [0, 49, *map(int, rng.integers(0, 50, 31))]
    x = bench.poisoned(len(tokens), hidden)
    ctx = bench.context(len(tokens), tokens=tokens)
    bench.run(embed(ctx, table, x, scale=24.0, label="t"), len(tokens))
    expected = ops.embed(torch.tensor(tokens), torch.from_numpy(values), 24.0)
    assert relative_error(bench.download(x, len(tokens), hidden), expected) < TOLERANCE


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_K", "Q6_K"])
def test_rows_of_a_table_with_the_units_first_are_dequantized(bench, rng, dtype) -> None:
    raw, values = random_tensor(rng, dtype, Layout.ROW, (50, 576))
    table = upload_weight(
        bench.arena, DTYPES[dtype], Layout.ROW, (50, 576), raw, "table", units_first=True
    )
    tokens = [0, 49, 7]
    x, ctx = bench.poisoned(3, 576), bench.context(3, tokens=tokens)
    bench.run(embed(ctx, table, x, scale=24.0, label="t"), 3)
    expected = ops.embed(torch.tensor(tokens), torch.from_numpy(values), 24.0)
    assert relative_error(bench.download(x, 3, 576), expected) < TOLERANCE


def test_rows_are_read_from_all_parts_of_a_split_table(bench, rng, monkeypatch) -> None:
    raw, values = random_tensor(rng, "F16", Layout.ROW, (100, 256))
    monkeypatch.setattr(type(bench.arena), "max_binding", 512 * 40)
    table = upload_weight(bench.arena, DTYPES["F16"], Layout.ROW, (100, 256), raw, "table")
    assert [part.first_row for part in table.parts] == [0, 32, 64, 96]
    tokens = [0, 31, 32, 99]
    x = bench.poisoned(4, 256)
    bench.run(embed(bench.context(4, tokens=tokens), table, x, label="t"), 4)
    assert np.array_equal(bench.download(x, 4, 256), values[tokens])


def test_positions_are_added_from_all_parts_of_a_split_table(bench, rng, monkeypatch) -> None:
    raw, values = random_tensor(rng, "F16", Layout.ROW, (100, 256))
    monkeypatch.setattr(type(bench.arena), "max_binding", 512 * 40)
    table = upload_weight(bench.arena, DTYPES["F16"], Layout.ROW, (100, 256), raw, "table")
    assert [part.first_row for part in table.parts] == [0, 32, 64, 96]
    before = normal(rng, 4, 256)
    x, ctx = bench.upload(before), bench.context(4, base=29)  # the rows 31 to 34 of the table
    bench.run(position_embed(ctx, table, x, offset=2, label="t"), 4)
    expected = before + values[31:35]
    assert relative_error(bench.download(x, 4, 256), expected) < TOLERANCE


def test_types_of_tokens_are_looked_up_by_segment(bench, rng) -> None:
    raw, values = random_tensor(rng, "F16", Layout.ROW, (2, 256))
    table = upload_weight(bench.arena, DTYPES["F16"], Layout.ROW, (2, 256), raw, "table")
    before = normal(rng, 5, 256)
    types = rng.integers(0, 2, 5)
    ctx = bench.context(5, positions=[7] * 5, segments=Segments(np.array([2, 5]), types))
    x = bench.upload(before)
    bench.run(position_embed(ctx, table, x, offset=0, by_type=True, label="t"), 5)
    assert relative_error(bench.download(x, 5, 256), before + values[types]) < TOLERANCE


def test_four_rows_of_a_table_are_added_by_their_factors(bench, rng) -> None:
    before, table, factors = normal(rng, 5, 68), normal(rng, 9, 68), normal(rng, 5, 4)
    nearest = rng.integers(0, 9, (5, 4))
    uploads = (bench.upload(table), bench.arena.upload("nearest", nearest.astype(np.uint32)))
    x, ctx = bench.upload(before), bench.context(5)
    bench.run(interpolate(ctx, x, *uploads, bench.upload(factors), width=68, label="t"), 5)
    expected = before + (table[nearest] * factors[..., None]).sum(axis=1)
    assert relative_error(bench.download(x, 5, 68), expected) < TOLERANCE


def test_a_width_that_is_no_multiple_of_four_is_not_interpolated(bench, rng) -> None:
    x = bench.upload(normal(rng, 4, 30))
    with pytest.raises(FormatError, match="multiple of 4"):
        interpolate(bench.context(4), x, x, x, x, width=30, label="t")


def test_rows_of_flat_blocks_are_dequantized(bench, rng) -> None:
    raw, values = random_tensor(rng, "Q6_K", Layout.FLAT, (40, 384))
    table = upload_weight(bench.arena, DTYPES["Q6_K"], Layout.FLAT, (40, 384), raw, "table")
    tokens = [0, 1, 38, 39]
    x = bench.poisoned(4, 384)
    bench.run(embed(bench.context(4, tokens=tokens), table, x, label="t"), 4)
    assert relative_error(bench.download(x, 4, 384), values[tokens]) < TOLERANCE


def test_column_major_unquantized_values_are_refused(bench, rng) -> None:
    raw, _ = random_tensor(rng, "F16", Layout.COLUMN, (64, 32))
    table = upload_weight(bench.arena, DTYPES["F16"], Layout.COLUMN, (64, 32), raw, "table")
    with pytest.raises(FormatError, match="column-major"):
        embed(bench.context(1), table, bench.poisoned(1, 32), label="t")
