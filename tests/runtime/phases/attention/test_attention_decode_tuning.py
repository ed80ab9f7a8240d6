"""Tests of how decode attention divides keys and heads, and of what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rdrr_runtime.phases.attention.attention_decode import refusal
from rdrr_runtime.phases.attention.attention_decode_tuning import (
    MAX_BATCH_SPLITS,
    SPLIT,
    DecodeTuning,
    default_split,
    default_tuning,
    heads_of_item,
)
from rdrr_runtime.phases.attention.head_transform import HeadTransform
from rdrr_runtime.phases.attention.spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.phases.context import Grid
from support.gpu import Bench, on_device

CONTEXT = 640


def test_a_batch_has_as_many_splits_as_run_at_the_same_time(bench: Bench) -> None:
    few, many = KvSpec(1, 64, 8192), KvSpec(8, 64, 8192)

    def most(cache: KvSpec, *rows: int) -> list[int]:
        return [default_split(bench.context(row), cache, 32).most for row in rows]

    assert default_split(bench.context(1), many, 32) == SPLIT
    assert most(many, 2, 4, 8, 13, 32, 64) == [16, 8, 4, 2, 1, 1]
    assert most(few, 8, 32) == [MAX_BATCH_SPLITS, 8]


@pytest.mark.parametrize(("context", "rows", "splits"), [(50, 4, 1), (320, 4, 5), (704, 4, 8)])
def test_a_batch_has_no_split_that_is_always_empty(bench: Bench, context, rows, splits) -> None:
    cache = KvSpec(8, 64, context)
    split = default_split(bench.context(rows), cache, 32)
    assert AttentionSpec(32, cache, 1.0, split=split).splits == splits


@pytest.mark.parametrize(
    ("heads", "kv_heads", "context", "groups", "expected", "splits"),
    [
        (32, 8, 8192, 132, 2, 8),  # llama-1b
        (32, 8, 4096, 132, 1, 4),  # in a short context
        (9, 3, 8192, 132, 1, 14),  # SmolLM 135M
        (32, 8, 8192, 528, 1, 16),
        (32, 8, 8192, 64, 4, 8),
        (32, 8, 8192, 1, 4, 8),  # no number of heads leaves a workgroup for each split
        (9, 3, 8192, 1, 3, 8),
        (9, 3, 512, 1, 3, 4),
    ],
)
def test_the_workgroups_of_a_grid_divide_heads_and_keys(
    bench: Bench, heads, kv_heads, context, groups, expected, splits
) -> None:
    ctx = replace(bench.context(1), grid=Grid(512, groups))
    cache = KvSpec(kv_heads, 64, context)
    split = default_split(ctx, cache, heads)
    assert split == SplitTuning(64, splits)
    spec = AttentionSpec(heads, cache, 1.0, split=split)
    assert heads_of_item(ctx, spec) == expected
    without = default_split(replace(ctx, grid=None), cache, heads)  # the control
    assert without != split


@pytest.mark.parametrize(
    ("changed", "of_device", "message"),
    [
        ({"heads": 34}, {}, "17 query heads share"),
        ({"head_dim": 1024}, {}, "head dimension is 1024, and at most"),
        ({"head_dim": 96, "dtype": "q8_0"}, {}, "head dimension is 96, not a multiple of 64"),
        ({"dtype": "q8_0"}, {"multi_sequence": True}, "one sequence only"),
        ({}, {"max_rows": 2}, "2 rows of one sequence"),
        ({}, {"workgroup_storage": 3072}, "the device has 3072"),
        ({}, {"max_threads": 64}, "at most 64"),
    ],
)
def test_a_refusal_gives_the_reason(bench: Bench, changed, of_device, message) -> None:
    ctx = bench.context(1)

    def asked(heads: int = 8, head_dim: int = 64, dtype: str = "f16") -> AttentionSpec:
        return AttentionSpec(heads, KvSpec(2, head_dim, CONTEXT, dtype), 1.0, split=SPLIT)

    assert refusal(ctx, asked()) is None
    reason = refusal(on_device(ctx, **of_device), asked(**changed))
    assert reason is not None
    assert message in reason


@pytest.mark.parametrize(
    ("pairs", "interleaved", "refused"),
    [(32, False, False), (20, False, False), (6, False, True), (6, True, False), (5, True, True)],
)
def test_words_of_four_elements_are_rotated_whole(
    bench: Bench, pairs: int, interleaved: bool, refused: bool
) -> None:
    spec = AttentionSpec(8, KvSpec(2, 64, CONTEXT), 1.0, split=SPLIT)
    reason = refusal(bench.context(1), spec, HeadTransform(pairs, interleaved=interleaved))
    assert (reason is not None and "rotated whole" in reason) is refused


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rows", "expected"),
    [
        (4, 1, 256, 1, 1),
        (8, 2, 256, 1, 1),
        (12, 2, 128, 1, 2),  # for 6 workgroups of a split, not 12
        (14, 2, 64, 1, 7),  # 7 has no other divisor
        (32, 2, 128, 1, 4),
        (32, 8, 64, 1, 4),  # the control: enough key-value heads
        (4, 1, 128, 4, 1),  # 4 rows with 10 splits are 160 workgroups
        (4, 1, 128, 12, 2),
        (4, 1, 128, 32, 4),
        (32, 8, 64, 8, 4),
    ],
)
def test_few_key_value_heads_divide_the_query_heads(
    bench, heads, kv_heads, head_dim, rows, expected
) -> None:
    ctx = on_device(bench.context(rows), max_threads=1024, workgroup_storage=48 * 1024)
    cache = KvSpec(kv_heads, head_dim, CONTEXT)
    spec = AttentionSpec(heads, cache, 1.0, split=default_split(ctx, cache, heads))
    assert default_tuning(ctx, spec) == DecodeTuning(256, expected)
    by_default = on_device(ctx, max_threads=256, workgroup_storage=16 * 1024)
    assert default_tuning(by_default, spec) == DecodeTuning(256, expected)
    small = on_device(ctx, max_threads=128)
    assert default_tuning(small, spec) == DecodeTuning(128, expected)


def test_rows_of_different_sequences_are_accepted(bench: Bench) -> None:
    spec = AttentionSpec(8, KvSpec(2, 64, CONTEXT), 1.0, split=SPLIT)
    assert refusal(replace(bench.context(1), max_rows=2, multi_sequence=True), spec) is None
