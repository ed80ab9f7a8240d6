"""The baseline kernels equal numpy and torch, and refuse matrices that they cannot read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from published.baselines.attention_unfused import attention_unfused
from published.baselines.gemv_int4_zp import gemv_int4_zp, upload_int4
from published.baselines.matmul_by_block import matmul_by_block
from published.baselines.matmul_naive import matmul_naive
from published.baselines.weights import upload_stored
from rdrr_format.errors import FormatError
from rdrr_format.layouts import Layout
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.reference import ops
from support.comparison import relative_error
from support.gpu import TOLERANCE, normal, random_tensor


@pytest.mark.parametrize("case", [(1, 9, 20), (13, 67, 132)], ids=str)
@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize("layout", [Layout.ROW, Layout.COLUMN])
def test_the_naive_product_equals_numpy(bench, rng, case, dtype, layout):
    rows, n, k = case
    raw, values = random_tensor(rng, dtype, layout, (n, k))
    weight = upload_stored(bench.arena, dtype, layout, (n, k), raw, "weight")
    x, y = normal(rng, rows, k), bench.poisoned(rows, n)
    bench.run(matmul_naive(bench.context(rows), weight, bench.upload(x), y, label="t"), rows)
    expected = x.astype(np.float64) @ values.astype(np.float64).T
    assert relative_error(bench.download(y, rows, n), expected) < TOLERANCE


def test_the_naive_product_refuses_types_other_than_f32_and_f16(bench, rng):
    raw, _ = random_tensor(rng, "Q8_0", Layout.ROW, (8, 32))
    weight = upload_stored(bench.arena, "Q8_0", Layout.ROW, (8, 32), raw, "weight")
    with pytest.raises(FormatError, match="F32 or F16"):
        matmul_naive(bench.context(1), weight, bench.poisoned(32), bench.poisoned(8), label="t")


@pytest.mark.parametrize("case", [(1, 9, 1152), (6, 5, 260)], ids=str)
def test_the_product_with_one_block_per_thread_equals_numpy(any_bench, rng, case):
    rows, n, k = case
    raw, values = random_tensor(rng, "Q4_K", Layout.ROW, (n, k))
    weight = upload_stored(any_bench.arena, "Q4_K", Layout.ROW, (n, k), raw, "weight")
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, n)
    phases = matmul_by_block(any_bench.context(rows), weight, any_bench.upload(x), y, label="t")
    any_bench.run(phases, rows)
    expected = x.astype(np.float64) @ values.astype(np.float64)[:, :k].T
    assert relative_error(any_bench.download(y, rows, n), expected) < TOLERANCE


def test_the_product_with_one_block_per_thread_refuses_column_major_matrices(bench, rng):
    raw, _ = random_tensor(rng, "Q4_K", Layout.COLUMN, (256, 8))
    weight = upload_stored(bench.arena, "Q4_K", Layout.COLUMN, (256, 8), raw, "weight")
    with pytest.raises(FormatError, match="Q4_K, row-major"):
        matmul_by_block(bench.context(1), weight, bench.poisoned(8), bench.poisoned(256), label="t")


@pytest.mark.parametrize("case", [(1, 67, 384, 32), (3, 6, 72, 8)], ids=str)
def test_codes_with_zero_points_equal_numpy(any_bench, rng, case):
    rows, n, k, group = case
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, (n, k // group)).astype(np.float32)
    zeros = rng.uniform(0, 15, (n, k // group)).astype(np.float32)
    wide = [np.repeat(one.astype(np.float64), group, axis=1) for one in (scales, zeros)]
    values = (codes - wide[1]) * wide[0]
    x, y = normal(rng, rows, k), any_bench.poisoned(rows, n)
    weight = upload_int4(any_bench.arena, codes, scales, zeros, "weight")
    phases = gemv_int4_zp(any_bench.context(rows), weight, any_bench.upload(x), y, label="t")
    any_bench.run(phases, rows)
    result = any_bench.download(y, rows, n)
    assert relative_error(result, x.astype(np.float64) @ values.T) < TOLERANCE
    without = x.astype(np.float64) @ (codes * wide[0]).T
    assert relative_error(result, without) > 1e-2  # the control: zero points matter


@pytest.mark.parametrize(("rows", "heads", "kv_heads"), [(21, 4, 2), (16, 3, 3)])
def test_unfused_attention_equals_torch(bench, rng, rows, heads, kv_heads):
    spec = AttentionSpec(heads, KvSpec(kv_heads, 20, rows + 3, "f32"), 0.3)
    q = normal(rng, rows, heads, 20)
    k, v = (normal(rng, kv_heads, rows + 3, 20) for _ in range(2))
    out = bench.poisoned(rows, heads, 20)
    phases = attention_unfused(
        bench.context(rows),
        bench.upload(q),
        bench.upload(k),
        bench.upload(v),
        bench.poisoned(heads, rows, rows),
        out,
        spec=spec,
        label="t",
    )
    bench.run(phases, rows)
    wide = (torch.from_numpy(array).double() for array in (q, k[:, :rows], v[:, :rows]))
    expected = ops.attention(*wide, spec.scale, base=0, window=0, softcap=0.0)
    assert relative_error(bench.download(out, rows, heads, 20), expected) < TOLERANCE
