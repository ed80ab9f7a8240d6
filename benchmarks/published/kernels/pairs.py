"""Pairs of kernels for the same work, of which one must be faster by a stated ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from rdrr_format.layouts import Layout

from published.kernels.lab import ARBITRARY_BYTES, Lab, lab
from published.kernels.products import product
from published.ratios import Ratio

if TYPE_CHECKING:
    from rdrr_runtime.phases.phase import Phase


@dataclass(frozen=True)
class Pair:
    """Two kernels for the same work.

    Attributes:
        name: Name in the list.
        slow: Name of the slower kernel.
        fast: Name of the faster kernel.
        make: For a size, the token rows of a step and the phases of both kernels.
        gate: The smallest ratio that passes.
        published: The ratio that was claimed or measured elsewhere, or None.
    """

    name: str
    slow: str
    fast: str
    make: Callable[[Lab, int], tuple[int, list[Phase], list[Phase]]]
    gate: float
    published: float | None = None


def _naive_and_tiled(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from rdrr_runtime.phases.linear import linear

    from published.rivals.matmul_naive import matmul_naive

    ctx, weight = here.context(size), here.weight("F32", Layout.ROW, size, size)
    x, y = here.floats(size * size), here.floats(size * size)
    stored = here.stored("F32", Layout.ROW, size, size)
    naive = matmul_naive(ctx, stored, x, y, label="naive")
    return size, naive, linear(ctx, weight, x, y, tiled=True, label="tiled")


def _wide_and_half(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    side, ctx = 4 * size, here.context(1)
    x, y = here.floats(side), here.floats(side)
    wide, half = (here.weight(dtype, Layout.ROW, side, side) for dtype in ("F32", "F16"))
    return 1, product(ctx, wide, x, y), product(ctx, half, x, y)


def _half_and_int4(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from published.rivals.gemv_int4_zp import gemv_int4_zp, upload_int4

    side, ctx = 4 * size, here.context(1)
    x, y = here.floats(side), here.floats(side)
    half = here.weight("F16", Layout.ROW, side, side)
    codes = np.resize(ARBITRARY_BYTES & 15, (side, side))
    scales = np.ones((side, side // 32), np.float32)
    small = upload_int4(here.arena, codes, scales, 8 * scales, "int4")
    return 1, product(ctx, half, x, y), gemv_int4_zp(ctx, small, x, y, label="int4")


def _shared_and_subgroups(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    side, ctx = 4 * size, here.context(1)
    x, y = here.floats(side), here.floats(side)
    half = here.weight("F16", Layout.ROW, side, side)
    plain = replace(ctx, features=ctx.features - {"subgroup"})
    return 1, product(plain, half, x, y), product(ctx, half, x, y)


def _published_shape(size: int) -> tuple[int, int]:
    """Return outputs and inputs; at a size of 1024 they are those of gate-up in Gemma 3 1B."""
    return 6 * size + 3 * size // 4, size + size // 8


def _rows_and_columns(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from published.rivals.matmul_naive import matmul_naive

    (n, k), ctx = _published_shape(size), here.context(1)
    x, y = here.floats(k), here.floats(n)
    by_row, by_column = (
        matmul_naive(ctx, here.stored("F16", layout, n, k), x, y, label=layout.value)
        for layout in (Layout.ROW, Layout.COLUMN)
    )
    return 1, by_row, by_column


def _blocks_and_expanded(here: Lab, size: int, rows: int) -> list[list[Phase]]:
    """Return a product with one block per thread, and that of the same matrix in F16."""
    from published.rivals.matmul_by_block import matmul_by_block

    (n, k), ctx = _published_shape(size), here.context(rows)
    x, y = here.floats(rows * k), here.floats(rows * n)
    fused = here.stored("Q4_K", Layout.ROW, n, k)
    expanded = here.weight("F16", Layout.ROW, n, k)
    return [matmul_by_block(ctx, fused, x, y, label="fused"), product(ctx, expanded, x, y)]


def _one_row_by_block(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    fused, expanded = _blocks_and_expanded(here, size, 1)
    return 1, fused, expanded


def _prompt_by_block(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    rows = size // 8
    fused, expanded = _blocks_and_expanded(here, size, rows)
    return rows, fused, expanded


def _three_and_one(here: Lab, size: int) -> tuple[int, list[Phase], list[Phase]]:
    from rdrr_runtime.phases.attention import AttentionKernel, attention
    from rdrr_runtime.phases.attention_spec import AttentionSpec
    from rdrr_runtime.phases.kv_cache import KvSpec, LayerCache

    from published.rivals.attention_three import attention_three

    spec = AttentionSpec(16, KvSpec(4, 64, size, "f32"), 0.125)
    ctx = here.context(size)
    q, out = here.floats(size * 16 * 64), here.floats(size * 16 * 64)
    k, v = here.floats(4 * size * 64), here.floats(4 * size * 64)
    scores = here.floats(16 * size * size)
    which = AttentionKernel.TILED_LARGE
    three = attention_three(ctx, q, k, v, scores, out, spec=spec, label="three")
    return (
        size,
        three,
        attention(ctx, q, LayerCache(k, v), out, spec=spec, which=which, label="one"),
    )


PAIRS: Mapping[str, Pair] = MappingProxyType(
    {
        one.name: one
        for one in (
            Pair("tiled-matmul", "one output per thread", "tiles", _naive_and_tiled, 1.3, 2.0),
            Pair("f16-weights", "F32 weights", "F16 weights", _wide_and_half, 1.5),
            Pair("int4-zero-points", "F16 weights", "4-bit codes", _half_and_int4, 1.0),
            Pair(
                "subgroup-gemv", "workgroup memory", "subgroups", _shared_and_subgroups, 0.97, 1.5
            ),
            Pair(
                "column-major",
                "row-major, one output per thread",
                "column-major, one output per thread",
                _rows_and_columns,
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
            Pair("flash-attention", "three launches", "one launch", _three_and_one, 1.3, 2.0),
        )
    }
)
"""The pairs by name."""

PAIR_SIZE, SOFTWARE_PAIR_SIZE = 1024, 64


def pairs(
    *, adapter: str | None = None, repeat: int = 10, size: int | None = None
) -> dict[str, Any]:
    """Measure all pairs, the two kernels of each alternately.

    Args:
        adapter: Part of an adapter's name.
        repeat: Measurements of each.
        size: Rows and columns of products, keys of attention; chosen by the adapter when None.

    Raises:
        DeviceError: There is no adapter, or it has no timestamps.
    """
    with lab(adapter) as here:
        software = here.device.info.software
        wanted = size or (SOFTWARE_PAIR_SIZE if software else PAIR_SIZE)
        ratios = [_ratio(here, one, wanted, repeat) for one in PAIRS.values()]
        return {
            "schema": 1,
            "adapter": here.device.info.name,
            "software": software,
            "size": wanted,
            "ratios": [one.as_dict(software=software) for one in ratios],
        }


def _ratio(here: Lab, pair: Pair, size: int, repeat: int) -> Ratio:
    with here.arena.temporary() as buffers:
        own = Lab(here.device, buffers, here.timer)
        rows, slow, fast = pair.make(own, size)
        times = own.times([slow, fast], rows, repeat)
    name = f"{pair.name}: {pair.fast} over {pair.slow}"
    return Ratio.between(name, *times, gate=pair.gate, published=pair.published)
