"""Tests of the KV cache and of attention over it, against torch in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Tuning
from rdrr_format.errors import DeviceError, FormatError
from rdrr_runtime.packing import Segments
from rdrr_runtime.phases.attention.attention import (
    TILE_ROWS,
    AttentionKernel,
    attention,
    partial_buffers,
    refusal,
)
from rdrr_runtime.phases.attention.attention_tiled import fitting_tiles, with_splits
from rdrr_runtime.phases.attention.spec import AttentionSpec, DistanceBias, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.attention import alibi_bias, distance_bias
from support.comparison import relative_error
from support.gpu import F32, TOLERANCE, Bench, filled_cache, normal, on_device

CONTEXT = 640
KERNELS = [which for which in AttentionKernel if which is not AttentionKernel.MATRICES]
PREFILL = [which for which in KERNELS if which is not AttentionKernel.SPLIT_KV]
TILED = [AttentionKernel.TILED_SMALL, AttentionKernel.TILED_LARGE]
WITH_SPLITS = [
    *((which, which is AttentionKernel.SPLIT_KV) for which in KERNELS),
    *((kernel, True) for kernel in TILED),
]
MAX_BINDING = 1 << 27


def check(
    bench: Bench,
    rng: np.random.Generator,
    spec: AttentionSpec,
    *,
    rows: int,
    base: int,
    which: AttentionKernel,
    sinks: F32 | None = None,
    max_rows: int | None = None,
    tuning: Tuning | None = None,
    splits: bool = False,
    ends: Sequence[int] | None = None,
) -> None:
    cache = spec.cache
    if sinks is not None:
        spec = replace(spec, sinks=bench.upload(sinks))
    (k, v), caches = filled_cache(bench, rng, cache, base + rows)
    most = max_rows or rows
    queries = normal(rng, most, spec.heads, cache.head_dim)
    q, out = queries[:rows], bench.poisoned(*queries.shape)
    tokens = None if ends is None else [end and 1000 + end for end in ends]
    ctx = bench.context(rows, base=base, max_rows=max_rows, tokens=tokens)
    is_split = splits or which is AttentionKernel.SPLIT_KV
    scratch = bench.poisoned(spec.scratch_bytes(most) // 4) if is_split else None
    phases = attention(
        replace(ctx, tuning=tuning or ctx.tuning),
        bench.upload(queries),
        LayerCache(*caches),
        out,
        spec=spec,
        which=which,
        scratch=scratch,
        label="t",
    )
    bench.run(phases, rows)
    expected = ops.attention(
        *(torch.from_numpy(array).double() for array in (q, k, v)),
        spec.scale,
        base=base,
        window=spec.window,
        softcap=spec.softcap,
        sinks=None if sinks is None else torch.from_numpy(sinks).double(),
        chunk=spec.chunk,
        ends=torch.tensor(ends) if ends and spec.images else None,
    )
    result = bench.download(out, *queries.shape)
    assert relative_error(result[:rows], expected) < TOLERANCE
    assert np.isnan(result[rows:]).all()


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 512])
def test_every_head_dimension_equals_torch(bench, rng, head_dim, which) -> None:
    spec = AttentionSpec(4, KvSpec(2, head_dim, CONTEXT), head_dim**-0.5)
    if refusal(which, bench.context(1), spec, MAX_BINDING) is not None:
        # 16 queries of 512 elements take 32 KiB, which is all the memory of some devices.
        assert (which, head_dim) == (AttentionKernel.TILED_LARGE, 512)
        with pytest.raises(DeviceError, match="workgroup memory"):
            check(bench, rng, spec, rows=1, base=401, which=which)
        return
    check(bench, rng, spec, rows=1, base=401, which=which)
    check(bench, rng, spec, rows=3, base=0, which=which)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (3, 3)])
def test_grouped_queries_softcap_and_f32_equal_torch(
    any_bench, rng, heads, kv_heads, which
) -> None:
    spec = AttentionSpec(heads, KvSpec(kv_heads, 36, CONTEXT, "f32"), 0.9, softcap=5.0)
    check(any_bench, rng, spec, rows=5, base=250, which=which)


@pytest.mark.parametrize(("which", "splits"), WITH_SPLITS)
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_a_query_that_is_nan_stays_visible(any_bench, rng, which, splits, cap) -> None:
    """The clamp of a soft cap must not make a number of it."""
    bench, spec = any_bench, AttentionSpec(6, KvSpec(2, 64, CONTEXT, "f32"), 0.2, softcap=cap)
    _, caches = filled_cache(bench, rng, spec.cache, 203)
    q = normal(rng, 3, 6, 64)
    q[1, 4, 7] = np.nan
    out, scratch = bench.poisoned(*q.shape), bench.poisoned(spec.scratch_bytes(3) // 4)
    operands = (bench.upload(q), LayerCache(*caches), out)
    wanted = {"spec": spec, "which": which, "scratch": scratch if splits else None}
    bench.run(attention(bench.context(3, base=200), *operands, **wanted, label="t"), 3)
    is_nan = np.isnan(bench.download(out, *q.shape))
    assert is_nan[1, 4].all()
    assert is_nan.sum() == 64


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("head_dim", [64, 96])
def test_attention_over_a_q8_0_cache_equals_torch_on_its_dequantized_values(
    any_bench, rng, head_dim, which
) -> None:
    spec = AttentionSpec(6, KvSpec(2, head_dim, CONTEXT, "q8_0"), 0.2)
    check(any_bench, rng, spec, rows=5, base=250, which=which)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize(("rows", "base"), [(1, 399), (1, 400), (5, 197), (3, 0)])
def test_a_row_attends_within_its_chunk(any_bench, rng, which, rows, base) -> None:
    spec = AttentionSpec(6, KvSpec(2, 64, CONTEXT, "f32"), 0.2, chunk=100)
    check(any_bench, rng, spec, rows=rows, base=base, which=which)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize(("rows", "base", "window"), [(1, 401, 0), (5, 450, 300), (3, 390, 0)])
def test_sinks_enlarge_the_denominator(any_bench, rng, which, rows, base, window) -> None:
    """One sink is far above all scores, and one far below."""
    cache = KvSpec(2, 64, CONTEXT, "f32")
    sinks = np.array([0.3, 30.0, -30.0, 2.0, 0.0, -1.0], np.float32)
    spec = AttentionSpec(6, cache, 0.2, window=window)
    check(any_bench, rng, spec, rows=rows, base=base, which=which, sinks=sinks)


@pytest.mark.parametrize("which", KERNELS)
@pytest.mark.parametrize("base", [0, 126, 127, 128, 500])
def test_the_sliding_window_ends_at_the_right_slot(bench, rng, base, which) -> None:
    spec = AttentionSpec(2, KvSpec(1, 64, CONTEXT), 0.125, window=128)
    check(bench, rng, spec, rows=5, base=base, which=which)


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("which", PREFILL)
def test_a_long_pass_equals_torch(bench, rng, which, window) -> None:
    spec = AttentionSpec(2, KvSpec(1, 64, CONTEXT), 0.125, window=window)
    check(bench, rng, spec, rows=200, base=30, which=which)


@pytest.mark.parametrize(("which", "splits"), WITH_SPLITS)
@pytest.mark.parametrize("window", [0, 12])
def test_rows_of_an_image_attend_to_all_of_it(any_bench, rng, which, splits, window) -> None:
    """Tiles begin and end within an image and within text; the second image is behind the first."""
    spec = AttentionSpec(4, KvSpec(2, 64, CONTEXT, "f32"), 0.2, window=window, images=1000)
    ends = [0] * 3 + [230] * 27 + [0] * 5 + [240] * 5 + [0] * 3
    case = {"rows": len(ends), "base": 200, "which": which, "splits": splits, "ends": ends}
    check(any_bench, rng, spec, **case)
    check(any_bench, rng, replace(spec, images=0), **case)  # they attend to earlier rows only


ONE_SEQUENCE = ([1] * 5, [3, 4, 5, 6, 7])  # the sequence and the slot of each row
THREE_SEQUENCES = ([2, 0, 1, 2, 0], [9, 0, 300, 8, 639])
OF_SEQUENCES = [
    *((which, ONE_SEQUENCE) for which in KERNELS),
    *((which, THREE_SEQUENCES) for which in KERNELS if which not in TILED),
]


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize(("which", "rows_of"), OF_SEQUENCES)
def test_a_row_attends_to_its_own_sequence(any_bench, rng, which, rows_of, window) -> None:
    sequences, slots = rows_of
    bench, rows, count = any_bench, len(slots), 3
    cache = KvSpec(2, 64, CONTEXT, "f32", sequences=count)
    spec = AttentionSpec(6, cache, 0.125, window=window)
    held = [normal(rng, count, 2, CONTEXT, 64) for _ in range(2)]
    q = normal(rng, rows, 6, 64)
    expected = np.concatenate(
        [
            ops.attention(
                torch.from_numpy(q[row : row + 1]).double(),
                *(torch.from_numpy(array[sequence, :, : slot + 1]).double() for array in held),
                0.125,
                base=slot,
                window=window,
                softcap=0.0,
            )
            for row, (sequence, slot) in enumerate(zip(sequences, slots, strict=True))
        ]
    )
    ctx = bench.context(rows, slots=slots, sequences=sequences)
    ctx = replace(ctx, multi_sequence=rows_of is THREE_SEQUENCES)
    out = bench.poisoned(*q.shape)
    scratch = bench.poisoned(spec.scratch_bytes(rows) // 4)
    phases = attention(
        ctx,
        bench.upload(q),
        LayerCache(*(bench.upload(array) for array in held)),
        out,
        spec=spec,
        which=which,
        scratch=scratch if which is AttentionKernel.SPLIT_KV else None,
        label="t",
    )
    bench.run(phases, rows)
    assert relative_error(bench.download(out, *q.shape), expected) < TOLERANCE


@pytest.mark.parametrize("which", KERNELS)
def test_tiled_kernels_refuse_rows_of_different_sequences(bench, which) -> None:
    spec, x = AttentionSpec(2, KvSpec(1, 64, 8, "f32"), 1.0), bench.poisoned(4096)
    alone = bench.context(1)
    mapped = replace(alone, multi_sequence=True)
    assert refusal(which, alone, spec, MAX_BINDING) is None
    reason = refusal(which, mapped, spec, MAX_BINDING)
    assert (reason is not None) == (which in TILED)
    if reason is not None:
        assert "different sequences" in reason
        with pytest.raises(DeviceError, match=reason):
            attention(mapped, x, LayerCache(x, x), x, spec=spec, which=which, label="t")


def test_scratch_that_the_device_cannot_bind_is_refused_with_its_size(bench) -> None:
    spec, ctx = AttentionSpec(2, KvSpec(1, 64, CONTEXT), 1.0), bench.context(1)
    size = spec.scratch_bytes(1)
    assert refusal(AttentionKernel.SPLIT_KV, ctx, spec, size) is None
    reason = refusal(AttentionKernel.SPLIT_KV, ctx, spec, size - 1)
    assert reason is not None
    assert str(size) in reason
    assert refusal(AttentionKernel.STREAMING, ctx, spec, size - 1) is None


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (20, 5.0)])
@pytest.mark.parametrize(("head_dim", "group"), [(36, 4), (64, 3), (64, 4)])
@pytest.mark.parametrize("which", TILED)
def test_every_form_of_a_tile_equals_torch(bench, rng, which, head_dim, group, window, cap) -> None:
    cache, rows = KvSpec(16, head_dim, CONTEXT), 70
    spec = AttentionSpec(16 * group, cache, 0.2, window=window, softcap=cap)
    sinks = normal(rng, spec.heads) if window else None
    phase = tiles(bench.context(rows), spec, which)[-1]
    assert phase.work.serves(rows)
    (key,) = phase.tuning_keys
    forms = (key.default, *key.candidates)
    # 16 rows of 3 heads do not fit the software adapter, and no other number divides them.
    assert key.default.heads > 1 or (which, group) == (AttentionKernel.TILED_LARGE, 3)
    if (which, head_dim, group) == (AttentionKernel.TILED_SMALL, 64, 4):
        # The largest tile, of 16 rows on other devices: 8 rows fit the software adapter.
        assert (key.default.heads, key.default.queries) == (4, 8)
    for form in forms:
        tuning = Tuning().with_params(key.name, form)
        check(bench, rng, spec, rows=rows, base=50, which=which, sinks=sinks, tuning=tuning)


def tiles(ctx: OpContext, spec: AttentionSpec, which: AttentionKernel) -> list[Phase]:
    """Lower an attention on buffers without content."""
    x = BufferSlice(None, 0, 1 << 30)
    return attention(ctx, x, LayerCache(x, x), x, spec=spec, which=which, label="t")


@pytest.mark.parametrize("rows", [5, 96, 97, 110])
def test_heads_share_tiles_in_passes_of_many_rows_only(bench, rng, rows) -> None:
    spec = AttentionSpec(32, KvSpec(16, 16, CONTEXT, "f32"), 0.2)
    which = AttentionKernel.TILED_LARGE
    phases = tiles(bench.context(rows, max_rows=110), spec, which)
    heads = [phase.record.tile_heads for phase in phases if phase.work.serves(rows)]
    assert heads == ([1] if rows <= 96 else [2])
    check(bench, rng, spec, rows=rows, base=20, which=which, max_rows=110)


def test_tiles_shrink_to_fit_workgroup_memory(bench) -> None:
    ctx = bench.context(1)
    large = AttentionSpec(2, KvSpec(1, 256, CONTEXT, "f32"), 1.0)
    small = AttentionSpec(2, KvSpec(1, 64, CONTEXT), 1.0)
    for spec, storage, keys in ((small, 16_384, 32), (large, 32_768, 8), (large, 16_384, None)):
        tiles = fitting_tiles(on_device(ctx, workgroup_storage=storage), spec, 16)
        assert next((tile.keys for tile in tiles), None) == keys


def test_too_little_workgroup_memory_is_refused(bench) -> None:
    spec = AttentionSpec(2, KvSpec(1, 256, 8, "f32"), 1.0)
    x = bench.poisoned(4096)
    ctx = on_device(bench.context(1), workgroup_storage=16_384)
    with pytest.raises(DeviceError, match="workgroup memory"):
        attention(
            ctx, x, LayerCache(x, x), x, spec=spec, which=AttentionKernel.TILED_LARGE, label="t"
        )


@pytest.mark.parametrize(
    ("heads", "cache", "message"),
    [
        (2, KvSpec(1, 516, 4), "too large"),
        (2, KvSpec(1, 62, 4), "multiple of 4"),
        (3, KvSpec(2, 64, 4), "divide evenly"),
        (2, KvSpec(1, 64, 4), "scratch"),
    ],
)
def test_unsupported_shapes_and_types_are_refused(bench, heads, cache, message) -> None:
    x = bench.poisoned(4096)
    with pytest.raises(FormatError, match=message):
        attention(
            bench.context(1),
            x,
            LayerCache(x, x),
            x,
            spec=AttentionSpec(heads, cache, 1.0),
            which=AttentionKernel.SPLIT_KV,
            label="t",
        )


WINDOWS = [
    pytest.param(AttentionSpec(8, KvSpec(2, 64, CONTEXT), 0.125), id="f16"),
    pytest.param(AttentionSpec(4, KvSpec(1, 256, CONTEXT), 0.0625, window=70), id="sliding window"),
    pytest.param(AttentionSpec(6, KvSpec(2, 96, CONTEXT, "q8_0"), 0.2), id="q8_0"),
    pytest.param(AttentionSpec(6, KvSpec(2, 36, CONTEXT, "f32"), 0.9, softcap=5.0), id="softcap"),
    pytest.param(AttentionSpec(4, KvSpec(2, 64, CONTEXT, "f32"), 0.2, chunk=100), id="chunks"),
]


@pytest.mark.parametrize("which", TILED)
@pytest.mark.parametrize("spec", WINDOWS)
def test_tiles_with_their_keys_in_splits_equal_torch(any_bench, rng, spec, which) -> None:
    """Behind any number of keys, of which the last split and the last step have some."""
    sinks = normal(rng, spec.heads) if spec.window else None
    spec = replace(spec, split=SplitTuning(64, 5), rows=TILE_ROWS[which])
    for rows, base in ((8, 0), (3, 62), (19, 190), (1, 500)):
        wanted = {"rows": rows, "base": base, "which": which, "sinks": sinks}
        check(any_bench, rng, spec, **wanted, max_rows=20, splits=True)


@pytest.mark.thorough
@pytest.mark.parametrize(("heads", "head_dim"), [(16, 64), (4, 256)])
@pytest.mark.parametrize("which", TILED)
def test_every_form_of_a_tile_with_splits_equals_torch(bench, rng, which, heads, head_dim) -> None:
    spec, rows = AttentionSpec(heads, KvSpec(heads // 4, head_dim, CONTEXT), 0.1, window=300), 19
    spec = with_splits(bench.context(rows), spec, TILE_ROWS[which], MAX_BINDING)
    x = BufferSlice(None, 0, 1 << 30)
    (phase, _) = attention(
        bench.context(rows), x, LayerCache(x, x), x, spec=spec, which=which, scratch=x, label="t"
    )
    (key,) = phase.tuning_keys
    for form in {key.default, *key.candidates}:
        tuning = Tuning().with_params(key.name, form)
        check(bench, rng, spec, rows=rows, base=350, which=which, tuning=tuning, splits=True)


def test_a_split_without_keys_of_a_row_is_left_out(bench, rng) -> None:
    """The first of 8 rows attends to slots 113 to 212, the last one to slots 120 to 219."""
    spec = AttentionSpec(4, KvSpec(1, 64, CONTEXT, "f32"), 0.2, window=100)
    spec = replace(spec, split=SplitTuning(32, 5), rows=8)
    _, caches = filled_cache(bench, rng, spec.cache, 220)
    q, scratch = normal(rng, 8, 4, 64), bench.poisoned(spec.scratch_bytes(8) // 4)
    ctx = bench.context(8, base=212)
    wanted = {"spec": spec, "which": AttentionKernel.TILED_SMALL, "scratch": scratch}
    phases = attention(ctx, bench.upload(q), LayerCache(*caches), None, **wanted, label="t")
    tuned = phases[0].tuning_keys[0].used.keys
    bench.run(phases, 8)
    stats = partial_buffers(spec, 8, scratch, "t")["stats"]
    sums = bench.download(stats, 8, 4, spec.splits, 2)[..., 1]
    low, span = 113, -(-(220 - 113) // (spec.splits * tuned)) * tuned
    span = max(span, 32)
    for row in range(8):
        for split in range(spec.splits):
            first = max(low + split * span, 113 + row)
            has_keys = first < min(low + (split + 1) * span, 213 + row)
            assert ((sums[row, :, split] > 0) == has_keys).all()
    assert (sums == 0).any()


def test_tiles_split_the_keys_where_they_are_few(bench) -> None:
    """The fewer tiles there are, the shorter are the splits."""
    divisions = []
    for heads, rows in ((4, 8), (32, 8), (32, 32), (32, 33)):
        spec = AttentionSpec(heads, KvSpec(heads // 4, 64, 8192), 0.1)
        divisions.append(with_splits(bench.context(rows), spec, 8, MAX_BINDING).split)
    assert divisions == sorted(divisions, key=lambda division: division.keys)
    assert [division.most > 1 for division in divisions] == [True, True, True, False]


def test_partial_results_that_the_device_cannot_bind_are_not_made(bench) -> None:
    spec, ctx = AttentionSpec(8, KvSpec(2, 64, 8192), 0.1), bench.context(8)
    split = with_splits(ctx, spec, 8, MAX_BINDING)
    size = split.scratch_bytes(8)
    assert split.splits > 1
    assert with_splits(ctx, spec, 8, size) == split
    assert with_splits(ctx, spec, 8, size - 1).splits == 1


@pytest.mark.parametrize("which", PREFILL)
@pytest.mark.parametrize(
    ("window", "chunk", "kind"),
    [(0, 0, ""), (9, 0, ""), (0, 16, ""), (0, 0, "buckets"), (0, 0, "alibi")],
)
def test_rows_attend_to_their_own_text_alone(any_bench, rng, which, window, chunk, kind) -> None:
    """Also over the ends of tiles, with texts of one token, and beside rows of no text."""
    bench, lengths = any_bench, [1, 40, 3, 17, 1, 70]
    ends, rows = np.cumsum(lengths), sum(lengths)
    weight = normal(rng, 32, 4)
    bias = DistanceBias.of(bench.upload(weight), 32, 128) if kind == "buckets" else None
    ctx = bench.context(rows, max_rows=rows + 9, segments=Segments(ends, np.zeros(rows, np.int64)))
    spec = AttentionSpec(
        4, KvSpec(4, 32, CONTEXT, "f32"), 0.3, window=window, chunk=chunk, causal=False
    )
    alibi = 8.0 if kind == "alibi" else 0.0
    spec = replace(spec, segments=ctx.state.segments, bias=bias, alibi=alibi)
    (k, v), caches = filled_cache(bench, rng, spec.cache, rows)
    q = normal(rng, rows + 9, 4, 32)
    out = bench.poisoned(*q.shape)
    operands = (bench.upload(q), LayerCache(*caches), out)
    bench.run(attention(ctx, *operands, spec=spec, which=which, label="t"), rows)
    result = bench.download(out, *q.shape)
    for start, end in zip(ends - lengths, ends, strict=True):
        parts = (q[start:end], k[:, start:end], v[:, start:end])
        added = {
            "buckets": distance_bias(torch.from_numpy(weight).double(), 128, range(end - start)),
            "alibi": alibi_bias(4, 8.0, range(end - start)),
        }
        expected = ops.attention(
            *(torch.from_numpy(part).double() for part in parts),
            spec.scale,
            window=window,
            chunk=chunk,
            causal=False,
            bias=added.get(kind),
        )
        assert relative_error(result[start:end], expected) < TOLERANCE
    assert np.isnan(result[rows:]).all()


def test_slopes_of_alibi_are_those_of_its_paper() -> None:
    """Also of 6 heads: those of 4, then every second of 8."""
    powers = {4: [2, 4, 6, 8], 6: [2, 4, 6, 8, 1, 3], 8: [1, 2, 3, 4, 5, 6, 7, 8]}
    for heads, expected in powers.items():
        bias = alibi_bias(heads, 8.0, range(2, 3), 6)
        assert bias.shape == (heads, 1, 6)
        assert torch.equal(bias[:, 0, 1], -(2.0 ** -torch.tensor(expected).float()))
        assert torch.equal(bias[:, 0], bias[:, 0, 1:2] * torch.tensor([2, 1, 0, 1, 2, 3]))


def test_buckets_of_distances_are_those_of_transformers() -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    for buckets, distance in ((32, 128), (16, 20), (4, 2), (64, 500)):
        steps = torch.arange(-distance - 5, distance + 6)
        weight = torch.arange(buckets).unsqueeze(1).double()
        rows = len(steps)
        ours = distance_bias(weight, distance, range(rows))[0]
        places = torch.arange(rows)
        theirs = MPNetEncoder.relative_position_bucket(
            places - places.unsqueeze(1), num_buckets=buckets, max_distance=distance
        )
        assert torch.equal(ours.long(), theirs), (buckets, distance)
