"""Tiled attention: queries of consecutive rows of a sequence share the keys that they read.

Passes of up to 32 rows have so few tiles that workgroups share the keys of a tile (splits), and
their partial results are combined afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.attention.spec import AttentionRecord, AttentionSpec, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KV_TYPES
from rdrr_runtime.phases.context import OpContext
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
        # The arrays of the shader: queries and a tile of keys, with a padding of one vector a part
        # in each row; weights, with 2 vectors between queries; shared_values; and rescales.
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

NARROW_HEAD, NARROW_FORMS = 32, ((2, 8, 32),)
"""Most elements of a narrow head, and the form that is preferred for it. On an H100 a pass of 8,170
rows of all-MiniLM took 3.96 ms with 2 queries a thread, 4.24 with 4, and 4.44 with one."""

# Forms for devices with little workgroup memory, whatever their threads.
SMALL_FORMS = ((1, 4, 16), (1, 4, 8))

# Queries, lanes and keys of tiles that have only a split of the keys, in order of preference.
SPLIT_FORMS = ((1, 16, 64), (2, 16, 64), (4, 16, 32), (1, 32, 32), (2, 32, 32), (4, 32, 32))
SPLIT_THREADS = 256
SPLIT_HEADS = 4
SPLIT_WORDS = 2
"""Most threads and heads of such a tile, and most vectors of each sum of a thread. Of the forms
measured on an H200 the first that keeps to them was the fastest, or within 3 % of it, for windows
of 8 and 32 rows and heads of 64 and 256 elements behind 512 and 8,192 tokens, except 16 rows of 4
heads: there 64 keys are 3 % faster behind 8,192, and 32 keys for prompts without a context."""

SPLIT_ROWS = 32
"""Most rows of a pass whose tiles split the keys."""

ENOUGH_TILES = 8
"""Tiles that fill a GPU well enough with the keys in splits, so that heads may share them. On an
H200 the attention of 8 rows behind 512 tokens took 7.0 us at Gemma 3 1B with one of its 4 query
heads in a tile and 8.2 with two, and behind 8,192 tokens 30 and 37."""

SPLIT_WORKGROUPS = 128
"""Workgroups among which the keys of a long context are split, about as many as an H200 has
processors. A window of 32 rows of llama-1b behind 8,192 tokens took 3,937 us with them, and 4,097
with twice as many; one of 8 rows 1,597 us with them, and 2,010 with half as many."""

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
        split: Whether each workgroup writes the partial result of one split of the keys.
        splits: Number of splits of the keys; None for none.
        min_keys: Fewest keys of a split, a multiple of `keys`; None without splits.
    """

    shader = "attention/attention_tiled"
    general = True
    trusted = True

    tile_heads: int = choice()
    queries: int = choice()
    lanes: int = choice()
    keys: int = choice()
    loads: int = choice()
    own_words: int = choice()
    split: bool = choice(default=False)
    splits: int | None = None
    min_keys: int | None = None


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
        buffers: `current`, `q`, `k_cache`, `v_cache` and `out`; or instead of `out`, for partial
            results of the splits of the keys, `sums` and `stats`.
        rows: Rows of a tile.
        label: Name of the op, for messages and profiles.
    """
    if "sums" in buffers:
        return [_split_tiles(ctx, spec, buffers, rows, label)]

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


def _split_tiles(
    ctx: OpContext,
    spec: AttentionSpec,
    buffers: dict[str, BufferSlice],
    rows: int,
    label: str,
) -> Phase:
    """Return the phase that computes the partial results of all splits of the keys."""
    forms = tuple(dict.fromkeys(split_tiles(ctx, spec, rows)))
    name = f"attention attention_tiled.{rows}.split.{spec.shape}, {ctx.max_rows} rows"
    tuning_key = ctx.tuning_key(name, forms[0], forms)
    used = tuning_key.used
    record = replace(
        _record(ctx, spec, used, rows),
        variant=f"{rows}.split.{spec.cache.dtype}",
        split=True,
        splits=spec.splits,
        min_keys=-(-spec.split.keys // used.keys) * used.keys,
    )
    work = Work(spec.heads // used.heads * spec.splits, rows)
    return Phase(record, buffers, work, label, (tuning_key,))


def with_splits(ctx: OpContext, spec: AttentionSpec, rows: int, max_binding: int) -> AttentionSpec:
    """Return an attention in tiles of `rows` rows, with the splits of the keys for its pass.

    Splits are the longer the more tiles there are. Passes of many rows have one split, and so have
    those whose partial results the device cannot bind.

    Args:
        ctx: Lowering context.
        spec: Specification of the attention; `tiled_refusal` must return None for it.
        rows: Rows of a tile.
        max_binding: Bytes of the largest buffer that the device can bind.
    """
    if ctx.max_rows > SPLIT_ROWS:
        return spec.unsplit
    tiles = _tiles(ctx, spec, rows, next(split_tiles(ctx, spec, rows)).heads)
    divided = replace(spec, split=_split_of(tiles), rows=rows)
    return divided if divided.scratch_bytes(ctx.max_rows) <= max_binding else spec.unsplit


def _split_of(tiles: int) -> SplitTuning:
    """Return how the keys of `tiles` tiles are split.

    On an H200 the attention of windows behind 512 tokens took 7.2 us with splits of 32 keys and 9.9
    with 64 (4 tiles), 7.5 and 10.9 with 64 and 128 (8 tiles), and 16.0 and 15.8 (16 tiles).
    """
    keys = min(max(8 * tiles // 32 * 32, 32), 128)
    return SplitTuning(keys, max(SPLIT_WORKGROUPS // tiles, 1))


def _tiles(ctx: OpContext, spec: AttentionSpec, rows: int, heads: int) -> int:
    """Return the number of tiles of `rows` rows and some heads that a pass has at most."""
    return spec.heads // heads * -(-ctx.max_rows // rows)


def split_tiles(ctx: OpContext, spec: AttentionSpec, rows: int) -> Iterator[TileTuning]:
    """Yield the forms of tiles with splits that a device can run, the preferred one first."""
    words = spec.cache.head_dim // 4
    divisors = [
        divisor
        for divisor in range(1, min(spec.group, SPLIT_HEADS) + 1)
        if spec.group % divisor == 0
    ]
    enough = [count for count in divisors if _tiles(ctx, spec, rows, count) >= ENOUGH_TILES]
    heads = (*reversed(enough or [1]), *(count for count in divisors if count not in enough))
    for tile in (TileTuning(some, *form) for some in dict.fromkeys(heads) for form in SPLIT_FORMS):
        small = tile.threads(rows) <= SPLIT_THREADS and words <= SPLIT_WORDS * tile.lanes
        if small and _fits(ctx, spec, rows, tile):
            yield tile
    yield from fitting_tiles(ctx, spec, rows, 1)


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
    divisors = [divisor for divisor in range(most, 0, -1) if spec.group % divisor == 0]
    narrow = NARROW_FORMS if spec.cache.head_dim <= NARROW_HEAD else ()
    for form in (*narrow, *FORMS, *SMALL_FORMS):
        tiles = (TileTuning(heads, *form) for heads in divisors)
        fitting = (tuning for tuning in tiles if _fits(ctx, spec, rows, tuning))
        yield from islice(fitting, 1)


def _fits(ctx: OpContext, spec: AttentionSpec, rows: int, form: TileTuning) -> bool:
    threads, words = form.threads(rows), spec.cache.head_dim // 4
    is_small = (form.queries, form.lanes, form.keys) in (*NARROW_FORMS, *SMALL_FORMS)
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
