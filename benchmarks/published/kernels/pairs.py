"""Pairs of kernels for the same work, where one must be faster than the other by a stated ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from rdrr_format.layouts import Layout

from published.kernels.kernel_bench import ARBITRARY_BYTES, KernelBench, open_kernel_bench
from published.kernels.products import product
from published.ratios import Ratio

if TYPE_CHECKING:
    from rdrr_runtime.phases.phase import Phase


@dataclass(frozen=True)
class Pair:
    """Two kernels for the same work.

    Attributes:
        name: Name of the pair.
        slow: Description of the slower kernel.
        fast: Description of the faster kernel.
        make: Function that takes a size and returns the token rows of a step, the phases of the
            slower kernel and those of the faster one.
        gate: The smallest ratio that passes.
        published: The ratio that was claimed or measured elsewhere, or None.
    """

    name: str
    slow: str
    fast: str
    make: Callable[[KernelBench, int], tuple[int, list[Phase], list[Phase]]]
    gate: float
    published: float | None = None


def _naive_and_tiled(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from rdrr_runtime.phases.products.linear import linear

    from published.baselines.matmul_naive import matmul_naive

    ctx, weight = bench.context(size), bench.weight("F32", Layout.ROW, size, size)
    x, y = bench.floats(size * size), bench.floats(size * size)
    stored = bench.stored("F32", Layout.ROW, size, size)
    naive = matmul_naive(ctx, stored, x, y, label="naive")
    return size, naive, linear(ctx, weight, x, y, tiled=True, label="tiled")


def _f32_and_f16(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    side, ctx = 4 * size, bench.context(1)
    x, y = bench.floats(side), bench.floats(side)
    f32, f16 = (bench.weight(dtype, Layout.ROW, side, side) for dtype in ("F32", "F16"))
    return 1, product(ctx, f32, x, y), product(ctx, f16, x, y)


def _f16_and_int4(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from published.baselines.gemv_int4_zp import gemv_int4_zp, upload_int4

    side, ctx = 4 * size, bench.context(1)
    x, y = bench.floats(side), bench.floats(side)
    f16 = bench.weight("F16", Layout.ROW, side, side)
    codes = np.resize(ARBITRARY_BYTES & 15, (side, side))
    scales = np.ones((side, side // 32), np.float32)
    small = upload_int4(bench.arena, codes, scales, 8 * scales, "int4")
    return 1, product(ctx, f16, x, y), gemv_int4_zp(ctx, small, x, y, label="int4")


def _workgroup_memory_and_subgroups(
    bench: KernelBench, size: int
) -> tuple[int, list[Phase], list[Phase]]:
    side, ctx = 4 * size, bench.context(1)
    x, y = bench.floats(side), bench.floats(side)
    f16 = bench.weight("F16", Layout.ROW, side, side)
    plain = ctx.without_subgroups()
    return 1, product(plain, f16, x, y), product(ctx, f16, x, y)


def _published_shape(size: int) -> tuple[int, int]:
    """Return outputs and inputs: at a size of 1024, 6912 and 1152, as gate and up in Gemma 3 1B."""
    return 6 * size + 3 * size // 4, size + size // 8


def _row_major_and_column_major(
    bench: KernelBench, size: int
) -> tuple[int, list[Phase], list[Phase]]:
    from published.baselines.matmul_naive import matmul_naive

    (n, k), ctx = _published_shape(size), bench.context(1)
    x, y = bench.floats(k), bench.floats(n)
    by_row, by_column = (
        matmul_naive(ctx, bench.stored("F16", layout, n, k), x, y, label=layout.value)
        for layout in (Layout.ROW, Layout.COLUMN)
    )
    return 1, by_row, by_column


def _blocks_and_expanded(bench: KernelBench, size: int, rows: int) -> list[list[Phase]]:
    """Return the product with one Q4_K block per thread, and the product of the matrix in F16."""
    from published.baselines.matmul_by_block import matmul_by_block

    (n, k), ctx = _published_shape(size), bench.context(rows)
    x, y = bench.floats(rows * k), bench.floats(rows * n)
    fused = bench.stored("Q4_K", Layout.ROW, n, k)
    expanded = bench.weight("F16", Layout.ROW, n, k)
    return [matmul_by_block(ctx, fused, x, y, label="fused"), product(ctx, expanded, x, y)]


def _one_row_by_block(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    fused, expanded = _blocks_and_expanded(bench, size, 1)
    return 1, fused, expanded


def _prompt_by_block(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    rows = size // 8
    fused, expanded = _blocks_and_expanded(bench, size, rows)
    return rows, fused, expanded


def _unfused_and_fused(bench: KernelBench, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from rdrr_runtime.phases.attention.attention import AttentionKernel, attention
    from rdrr_runtime.phases.attention.spec import AttentionSpec
    from rdrr_runtime.phases.cache.kv_cache import KvSpec, LayerCache

    from published.baselines.attention_unfused import attention_unfused

    spec = AttentionSpec(16, KvSpec(4, 64, size, "f32"), 0.125)
    ctx = bench.context(size)
    q, out = bench.floats(size * 16 * 64), bench.floats(size * 16 * 64)
    k, v = bench.floats(4 * size * 64), bench.floats(4 * size * 64)
    scores = bench.floats(16 * size * size)
    which = AttentionKernel.TILED_LARGE
    unfused = attention_unfused(ctx, q, k, v, scores, out, spec=spec, label="unfused")
    return (
        size,
        unfused,
        attention(ctx, q, LayerCache(k, v), out, spec=spec, which=which, label="fused"),
    )


PAIRS: Mapping[str, Pair] = MappingProxyType(
    {
        pair.name: pair
        for pair in (
            Pair("tiled-matmul", "one output per thread", "tiles", _naive_and_tiled, 1.3, 2.0),
            Pair("f16-weights", "F32 weights", "F16 weights", _f32_and_f16, 1.5),
            Pair("int4-zero-points", "F16 weights", "4-bit codes", _f16_and_int4, 1.0),
            Pair(
                "subgroup-gemv",
                "workgroup memory",
                "subgroups",
                _workgroup_memory_and_subgroups,
                0.97,
                1.5,
            ),
            Pair(
                "column-major",
                "row-major, one output per thread",
                "column-major, one output per thread",
                _row_major_and_column_major,
                1.5,
                1.5,
            ),
            Pair(
                "q4k-by-block",
                "Q4_K, one block per thread",
                "expanded to F16",
                _one_row_by_block,
                1.5,
                2.63,
            ),
            Pair(
                "q4k-by-block-prefill",
                "Q4_K, one block per thread",
                "expanded to F16, tiles",
                _prompt_by_block,
                5.0,
                11.8,
            ),
            Pair(
                "flash-attention", "three dispatches", "one dispatch", _unfused_and_fused, 1.3, 2.0
            ),
        )
    }
)
"""The pairs by name."""

PAIR_SIZE, SOFTWARE_PAIR_SIZE = 1024, 64
"""Default sizes of the pairs, on GPUs and on software adapters."""


def pairs(
    *, adapter: str | None = None, repeat: int = 10, size: int | None = None
) -> dict[str, Any]:
    """Measure all pairs, the two kernels of each alternately.

    Args:
        adapter: Part of the name of the adapter to use.
        repeat: Number of measurements of each kernel.
        size: Size that the rows and columns of products and the keys of attention scale with;
            chosen by the kind of adapter when None.

    Raises:
        DeviceError: There is no adapter, or it has no timestamps.
    """
    with open_kernel_bench(adapter) as bench:
        software = bench.device.info.software
        wanted = size or (SOFTWARE_PAIR_SIZE if software else PAIR_SIZE)
        ratios = [_ratio(bench, pair, wanted, repeat) for pair in PAIRS.values()]
        return {
            "schema": 1,
            "adapter": bench.device.info.name,
            "software": software,
            "size": wanted,
            "ratios": [ratio.as_dict(software=software) for ratio in ratios],
        }


def _ratio(bench: KernelBench, pair: Pair, size: int, repeat: int) -> Ratio:
    with bench.arena.temporary() as buffers:
        fresh = KernelBench(bench.device, buffers, bench.timer)
        rows, slow, fast = pair.make(fresh, size)
        times = fresh.times([slow, fast], rows, repeat)
    name = f"{pair.name}: {pair.fast} over {pair.slow}"
    return Ratio.between(name, *times, gate=pair.gate, published=pair.published)
