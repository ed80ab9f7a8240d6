"""Tiled attention: queries of consecutive rows of a sequence share the keys that they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.attention_spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KV_TYPES
from rdrr_runtime.phases.phase import Phase, Work, choice


@dataclass(frozen=True)
class TileTuning(Params):
    """Tuning parameters of attention_tiled.

    Attributes:
        heads: Query heads of a tile, which share a key-value head.
        queries: Queries (one head of one row each) for which a thread computes scores and sums.
        lanes: Threads that share these queries, a multiple of `queries`.
        keys: Keys of a step, a multiple of 4 and at most 4 for each of the lanes.
    """

    heads: int
    queries: int
    lanes: int
    keys: int

    def threads(self, rows: int) -> int:
        """Return the threads of a workgroup whose tile has `rows` rows."""
        return rows * self.heads // self.queries * self.lanes

    def storage(self, spec: AttentionSpec, rows: int) -> int:
        """Return the bytes of workgroup memory for tiles of `rows` rows."""
        tile, parts = rows * self.heads, 4 * self.lanes // self.keys
        stride = spec.cache.head_dim + 4 * parts
        keys = self.keys * stride * KV_TYPES[spec.cache.dtype].tile_bytes
        weights = 4 * tile * parts * (self.keys + 8)
        return 4 * tile * stride + keys + weights + 4 * self.threads(rows) + 4 * tile


# Queries, lanes and keys in order of preference. For heads of 64, 128 and 256 elements, the first
# that fits an H200 with at least 8 threads a row was the fastest of 12 to 28 forms; with fewer
# threads, 8 queries a thread took twice as long.
FORMS = (
    (8, 16, 64),
    (4, 16, 64),
    (4, 32, 32),
    (2, 16, 32),
    (4, 32, 16),
    (1, 8, 32),
    (1, 8, 16),
    (1, 8, 8),
)
THREADS_PER_ROW = 8

# Forms for devices with little workgroup memory, whatever their threads.
SMALL_FORMS = ((1, 4, 16), (1, 4, 8))

MANY_TILES = 96
"""Workgroups that fill a GPU well enough for heads to share them. On an H200, 40 rows behind 8,000
tokens took 705 us in 24 workgroups of 4 heads, and 374 in 96 of one head; 512 rows behind 3,584
tokens took 677 us with heads that share, and 868 without."""


@dataclass(frozen=True, kw_only=True)
class AttentionTiled(AttentionRecord):
    """Parameters of attention_tiled.wgsl.

    Attributes:
        tile_heads: Query heads of a tile.
        queries: Queries of a thread.
        lanes: Threads that share these queries.
        keys: Keys of a step.
        loads: Vectors of 4 elements of keys that a thread loads in a step.
        own_words: Vectors of 4 output elements of each query that a thread accumulates.
    """

    shader = "attention_tiled"
    trusted = True

    tile_heads: int = choice()
    queries: int = choice()
    lanes: int = choice()
    keys: int = choice()
    loads: int = choice()
    own_words: int = choice()


def attention_tiled(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    rows: int,
    label: str,
) -> list[Phase]:
    """Lower attention to tiles of `rows` rows; `tiled_refusal` must return None.

    Heads that share a key-value head share tiles, except in short passes: these get a phase
    of their own if the pass may have more.

    Args:
        ctx: Lowering context; the rows of a pass are in ascending slots of one sequence.
        spec: Specification of the attention.
        buffers: `current`, `q`, `k_cache`, `v_cache` and `out`.
        rows: Rows of a tile.
        label: Name of the op, for messages and profiles.
    """

    def phase(form: TileTuning, *keys: TuningKey[TileTuning], **limits: int) -> Phase:
        work = Work(spec.heads // form.heads, rows, **limits)
        return Phase(_record(ctx, spec, form, rows), buffers, work, label, keys)

    most = next(fitting_tiles(ctx, spec, rows)).heads
    few = rows * (MANY_TILES * most // spec.heads) if most > 1 else 0
    forms = tuple(fitting_tiles(ctx, spec, rows, most if ctx.max_rows > few else 1))
    name = f"attention attention_tiled.{rows}.{spec.shape}, {ctx.max_rows} rows"
    tuning_key = ctx.tuning_key(name, forms[0], forms)
    if few in range(1, ctx.max_rows):
        alone = next(fitting_tiles(ctx, spec, rows, 1))
        return [phase(alone, up_to=few), phase(tuning_key.used, tuning_key, above=few)]
    return [phase(tuning_key.used, tuning_key)]


def tiled_refusal(ctx: OpContext, spec: AttentionSpec, rows: int) -> str | None:
    """Return why tiles of `rows` rows cannot compute an attention, or None if they can."""
    if ctx.multi_sequence:
        return "rows of different sequences cannot share a tile of keys"
    if not any(fitting_tiles(ctx, spec, rows)):
        return (
            f"a tile of {rows} rows of {spec.cache.head_dim} elements needs "
            f"{TileTuning(1, *SMALL_FORMS[-1]).storage(spec, rows)} bytes of workgroup memory, "
            f"and the device has {ctx.workgroup_storage}"
        )
    return None


def fitting_tiles(
    ctx: OpContext, spec: AttentionSpec, rows: int, most_heads: int | None = None
) -> Iterator[TileTuning]:
    """Yield the forms that a device can run tiles of `rows` rows in, the preferred one first.

    Each has as many heads as fit, up to `most_heads`; None for no limit.
    """
    most = spec.group if most_heads is None else most_heads
    divisors = [one for one in range(most, 0, -1) if spec.group % one == 0]
    for form in (*FORMS, *SMALL_FORMS):
        tiles = (TileTuning(heads, *form) for heads in divisors)
        fitting = (one for one in tiles if _fits(ctx, spec, rows, one))
        yield from islice(fitting, 1)


def _fits(ctx: OpContext, spec: AttentionSpec, rows: int, form: TileTuning) -> bool:
    threads, words = form.threads(rows), spec.cache.head_dim // 4
    is_small = (form.queries, form.lanes, form.keys) in SMALL_FORMS
    is_useful = threads >= THREADS_PER_ROW * rows and form.lanes <= max(words, THREADS_PER_ROW)
    fits = threads <= ctx.max_threads and form.storage(spec, rows) <= ctx.workgroup_storage
    return fits and (is_small or is_useful)


def _record(ctx: OpContext, spec: AttentionSpec, form: TileTuning, rows: int) -> AttentionTiled:
    words, threads = spec.cache.head_dim // 4, form.threads(rows)
    return AttentionTiled(
        threads=threads,
        variant=f"{rows}.{spec.cache.dtype}",
        tile_heads=form.heads,
        queries=form.queries,
        lanes=form.lanes,
        keys=form.keys,
        loads=-(-form.keys * words // threads),
        own_words=-(-words // form.lanes),
        **spec.parameters(ctx),
    )
