"""Tests of attention on matrices of subgroups, against torch in float64.

No software adapter multiplies matrices, so here each thread multiplies elements. A device that has
the operation runs the same tests with it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rdrr_device.capabilities import DEFAULT_LIMITS
from rdrr_device.dry_run import DryRunArena
from rdrr_device.shaders import WgslCompiler, for_compiler
from rdrr_runtime.phases.attention.attention_subgroup import (
    SubgroupAttentionTile,
    attention_subgroup,
    fitting,
    subgroup_refusal,
)
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.launch import as_dispatch
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import Bench, filled_cache, normal
from support.lowered import WITH_MATRICES
from support.matrices import matrix_compiler, stating_matrices

ROUNDED = 1e-3
"""Bound for factors in f16: queries, keys of a Q8_0 cache, and weights."""


def in_half(queries: np.ndarray) -> np.ndarray:
    """Round queries to f16 with the largest element of each at 256."""
    factor = 256 / np.abs(queries).max(axis=-1, keepdims=True)
    return (queries * factor).astype(np.float16).astype(np.float32) / factor


def check(
    bench: Bench, rng, spec: AttentionSpec, *, rows: int, base: int, scale=1.0, tile=None, ends=()
):
    """Compare attention with torch on queries that f16 holds; `scale` multiplies them.

    Rows of images have the slot behind their image in `ends`, and those of text 0.
    """
    cache, tokens = spec.cache, [end and spec.images + end for end in ends]
    sinks = None if spec.sinks is None else bench.download(spec.sinks, spec.heads)
    (k, v), caches = filled_cache(bench, rng, cache, base + rows)
    q = in_half(np.float32(scale) * normal(rng, rows, spec.heads, cache.head_dim))
    out, ctx = bench.poisoned(*q.shape), stating_matrices(bench, rows, base=base, tokens=tokens)
    given = {"current": ctx.state.step, "q": bench.upload(q), "out": out}
    given |= {"k_cache": caches[0], "v_cache": caches[1], **spec.buffers}
    bench.run(attention_subgroup(ctx, spec, given, "t", tile), rows)
    expected = ops.attention(
        *(torch.from_numpy(array).double() for array in (q, k, v)),
        spec.scale,
        base=base,
        window=spec.window,
        softcap=spec.softcap,
        sinks=None if sinks is None else torch.from_numpy(sinks).double(),
        chunk=spec.chunk,
        ends=torch.tensor(ends) if ends else None,
    )
    assert relative_error(bench.download(out, *q.shape), expected) < ROUNDED


@pytest.mark.parametrize(
    ("dtype", "head_dim", "teams"), [("f16", 64, 2), ("q8_0", 64, 2), ("f16", 32, 4)]
)
def test_heads_that_share_keys_equal_torch(bench, rng, dtype, head_dim, teams) -> None:
    """The queries of 4 teams are staged in two rounds."""
    spec = AttentionSpec(8, KvSpec(2, head_dim, 256, dtype), 0.125)
    check(bench, rng, spec, rows=70, base=60, tile=SubgroupAttentionTile(teams, 32))


def test_windows_softcaps_and_sinks_equal_torch(bench, rng) -> None:
    sinks = bench.upload(normal(rng, 3) + 2)
    spec = AttentionSpec(3, KvSpec(3, 96, 128), 0.3, window=20, softcap=5.0, sinks=sinks)
    check(bench, rng, spec, rows=40, base=30, tile=SubgroupAttentionTile(1, 32))


def test_rows_of_images_attend_to_all_of_them(bench, rng) -> None:
    spec = AttentionSpec(2, KvSpec(2, 64, 128), 0.3, window=20, images=1000)
    ends = [0] * 7 + [62] * 25 + [0] * 8
    check(bench, rng, spec, rows=40, base=30, tile=SubgroupAttentionTile(1, 32), ends=ends)


@pytest.mark.parametrize("head_dim", [72, 20])
def test_heads_of_no_whole_matrices_equal_torch(bench, rng, head_dim) -> None:
    """Several steps and rescaled sums, so that zeros behind the elements must remain."""
    spec = AttentionSpec(2, KvSpec(2, head_dim, 128), 0.3)
    check(bench, rng, spec, rows=40, base=60, scale=30.0, tile=SubgroupAttentionTile(1, 32))


def test_weights_are_rescaled_as_their_maximum_grows_over_many_steps(bench, rng) -> None:
    """Scores of hundreds make each new maximum outgrow the others by more than f16 holds."""
    spec = AttentionSpec(1, KvSpec(1, 64, 256), 0.125)
    check(bench, rng, spec, rows=40, base=150, scale=300.0, tile=SubgroupAttentionTile(1, 32))


def test_queries_beyond_f16_equal_torch(bench, rng) -> None:
    spec = AttentionSpec(1, KvSpec(1, 64, 128), 0.125 / 1e7)
    check(bench, rng, spec, rows=40, base=0, scale=1e7, tile=SubgroupAttentionTile(1, 32))


def with_matrices(**changed: object) -> OpContext:
    capabilities = replace(WITH_MATRICES, **changed)
    arena = DryRunArena(capabilities)
    return OpContext(State.create(arena, 512, ring=4), 512, capabilities)


def test_other_devices_and_attentions_are_refused_with_the_reason() -> None:
    spec = AttentionSpec(8, KvSpec(2, 64, 256), 0.125)
    ctx = with_matrices()
    assert subgroup_refusal(ctx, spec) is None
    reasons = {
        "128 rows": subgroup_refusal(replace(ctx, max_rows=127), spec),
        "registers": subgroup_refusal(ctx, replace(spec, cache=KvSpec(2, 256, 256))),
        "sequences": subgroup_refusal(replace(ctx, multi_sequence=True), spec),
        "shape": subgroup_refusal(with_matrices(matrices=()), spec),
        "f32 cache": subgroup_refusal(ctx, replace(spec, cache=KvSpec(2, 64, 256, "f32"))),
        "fit": subgroup_refusal(with_matrices(limits={**DEFAULT_LIMITS, STORAGE: 4096}), spec),
        "one size": subgroup_refusal(with_matrices(subgroup_sizes=(8, 32)), spec),
    }
    for word, reason in reasons.items():
        assert reason is not None, word
        assert word in reason


STORAGE = "max-compute-workgroup-storage-size"


@pytest.mark.parametrize(("head_dim", "keys"), [(64, 64), (72, 32), (128, 32)])
def test_heads_with_many_elements_take_fewer_keys_a_step(head_dim, keys) -> None:
    spec = AttentionSpec(8, KvSpec(2, head_dim, 256), 0.125)
    first, *others = fitting(with_matrices(), spec)
    assert (first.teams, first.keys) == (4, keys)
    assert {tile.keys for tile in others} >= {32, 64} - {keys}  # which `rdrr tune` measures


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, "f16"), (72, "f16"), (128, "q8_0")])
def test_tint_accepts_attention_on_matrices(head_dim, dtype) -> None:
    compiler, ctx = matrix_compiler(), with_matrices()
    spec = AttentionSpec(8, KvSpec(2, head_dim, 256, dtype), 0.125, window=20)
    size = 8 * 512 * 8 * head_dim
    given = dict.fromkeys(("current",), ctx.state.step)
    empty = DryRunArena(ctx.capabilities).empty
    given |= {name: empty(name, size) for name in ("q", "k_cache", "v_cache", "out")}
    (phase,) = attention_subgroup(ctx, spec, given, "t")
    source = for_compiler(as_dispatch(phase).kernel.source, WgslCompiler.TINT)
    assert "subgroupMatrixMultiplyAccumulate" in source
    compiler.create_shader_module(code=source)
    with pytest.raises(Exception, match="subgroupMatrixStore"):
        compiler.create_shader_module(code=source.replace("row_major>(&scores", "(&scores"))
