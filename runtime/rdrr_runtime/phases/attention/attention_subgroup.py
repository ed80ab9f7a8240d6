"""Attention of many rows of a sequence on matrices of subgroups: f16 factors, sums in f32.

Scores and sums are products of matrices that a subgroup multiplies at once (tensor cores), as in
`rdrr_runtime.phases.products.matmul_subgroup`, which says where the shapes come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_device.capabilities import MatrixShape
from rdrr_device.tuning import Params

from rdrr_runtime.phases.attention.spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import Phase, Work, choice
from rdrr_runtime.phases.products.matmul_subgroup_tuning import (
    matrix_shape,
    multiplies,
    sizes_refusal,
    subgroup_threads,
)


@dataclass(frozen=True, kw_only=True)
class AttentionSubgroup(AttentionRecord):
    """Parameters of attention_subgroup.wgsl.

    Attributes:
        tile_heads: Query heads of a tile.
        teams: Subgroups of a workgroup.
        keys: Keys of a step.
        elements: Head dimension.
        shape: Rows, outputs and inputs that a subgroup multiplies at once.
        size: Threads of a subgroup.
        matrices: Whether subgroups multiply matrices; else each thread multiplies elements.
        subgroups: Whether subgroup operations are used, which is the same.
        activations: Type of the activations, `f32` or `f16`; `value` is that of the factors.
    """

    shader = "attention/attention_subgroup"
    trusted = True

    tile_heads: int = choice()
    teams: int = choice()
    keys: int = choice()
    elements: int = choice()
    shape: tuple[int, int, int] = choice()
    size: int = choice()
    matrices: bool = choice()
    subgroups: bool = choice()
    activations: str = choice()


@dataclass(frozen=True)
class SubgroupAttentionTile(Params):
    """The queries and keys that a workgroup works on.

    Attributes:
        teams: Subgroups, each with as many queries as a matrix has rows.
        keys: Keys of a step.
    """

    teams: int
    keys: int

    def storage(self, shape: MatrixShape, elements: int, *, matrices: bool) -> int:
        """Return the bytes of workgroup memory for heads of some elements.

        Queries that stay in matrices are staged in the memory of as many keys. Without matrices the
        sums are in workgroup memory too.
        """
        queries, side = self.teams * shape.m, max(shape.n, shape.k)
        elements = -(-elements // side) * side
        staged = self.keys + (0 if matrices else queries)
        halves = staged * (elements + 8) + queries * (self.keys + 8)
        floats = queries * (self.keys + 9 + (0 if matrices else elements)) + 4
        return 2 * halves + 4 * floats


MIN_ROWS = 128
"""Fewest rows of a pass. On an H100, 64 rows of 32 heads took 10 us here and 8 in tiles."""

MAX_ELEMENTS = 128
"""Most elements of a head. 512 rows of 8 heads of 256 took 189 us on an H100, and 75 in tiles."""

TILES = tuple(
    SubgroupAttentionTile(*form) for form in ((4, 64), (4, 32), (2, 32), (1, 32), (1, 16))
)
"""In order of preference, but those with more than `MOST_STAGED` elements of keys last."""

MOST_STAGED = 64 * 64
"""Elements of keys up to which a step is faster with more of them; beyond, fewer leave room for a
second workgroup on a multiprocessor. 32 heads of 8 with 128 elements, 512 rows behind 3,584 tokens,
took 328 us on an H200 with 64 keys and 255 with 32, and heads of 64 on an H100 183 and 223."""


def subgroup_refusal(ctx: OpContext, spec: AttentionSpec) -> str | None:
    """Return why subgroups cannot multiply the matrices of an attention, or None if they can."""
    if ctx.max_rows < MIN_ROWS:
        return f"tiles of rows are faster below {MIN_ROWS} rows"
    if ctx.multi_sequence:
        return "rows of different sequences cannot share a tile of keys"
    shape = matrix_shape(ctx)
    if shape is None:
        return "the device states no shape of matrices in f16 with sums in f32"
    if spec.cache.dtype == "f32":
        return "keys and values of an f32 cache are not rounded to f16"
    if spec.cache.head_dim > MAX_ELEMENTS:
        return f"the sums of heads of more than {MAX_ELEMENTS} elements do not fit the registers"
    problem = sizes_refusal(ctx)
    if problem is None and not fitting(ctx, spec):
        return "the smallest tile does not fit into a workgroup"
    return problem


def fitting(ctx: OpContext, spec: AttentionSpec) -> tuple[SubgroupAttentionTile, ...]:
    """Return the tiles that a device can run, the preferred one first."""
    shape, threads = matrix_shape(ctx), subgroup_threads(ctx)
    if shape is None or threads % shape.m:
        return ()
    fit = (
        tile
        for tile in TILES
        if tile.storage(shape, spec.cache.head_dim, matrices=multiplies(ctx))
        <= ctx.workgroup_storage
        and tile.teams * threads <= ctx.max_threads
        and tile.keys >= shape.m
        and tile.keys % max(shape.n, shape.k, 4 * threads // shape.m) == 0
    )
    return tuple(sorted(fit, key=lambda tile: tile.keys * spec.cache.head_dim > MOST_STAGED))


def attention_subgroup(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    label: str,
    tile: SubgroupAttentionTile | None = None,
) -> list[Phase]:
    """Lower attention to matrices of subgroups; `subgroup_refusal` must return None.

    Args:
        ctx: Lowering context; the rows of a pass are in ascending slots of one sequence.
        spec: Specification of the attention.
        buffers: `current`, `q`, `k_cache`, `v_cache` and `out`.
        label: Name of the op, for messages and profiles.
        tile: Tile to use instead of the tuned or default one.
    """
    shape = matrix_shape(ctx)
    assert shape is not None, "a refusal says that there is none"
    forms = fitting(ctx, spec)
    name = f"attention attention_subgroup.{spec.shape}, {ctx.max_rows} rows"
    tuning_key = ctx.tuning_key(name, forms[0], forms)
    used = tile or tuning_key.used
    queries = used.teams * shape.m
    # Heads that share keys share a tile, whose rows are then fewer.
    heads = max(
        count for count in range(1, spec.group + 1) if spec.group % count == 0 == queries % count
    )
    record = AttentionSubgroup(
        threads=used.teams * subgroup_threads(ctx),
        variant=f"{spec.cache.dtype}",
        tile_heads=heads,
        teams=used.teams,
        keys=used.keys,
        elements=spec.cache.head_dim,
        shape=(shape.m, shape.n, shape.k),
        size=subgroup_threads(ctx),
        matrices=multiplies(ctx),
        subgroups=multiplies(ctx),
        activations=ctx.values,
        **spec.parameters(ctx) | {"value": "f16"},
    )
    work = Work(spec.heads // heads, queries // heads)
    return [Phase(record, buffers, work, label, (tuning_key,))]
