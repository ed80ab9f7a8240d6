"""Tuning parameters of decode attention: how workgroups and their threads share keys and heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.attention.spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.cache.kv_cache import KvSpec
from rdrr_runtime.phases.context import OpContext

WORKGROUPS = (256, 128)
"""Threads of a workgroup, in order of preference. On an H200 a step of 32 rows behind 512 tokens of
llama-1b takes 2,506 us with 256 threads and 2,605 us with 128."""

THREADS = (64, 128, 256, 512)
"""Threads of a workgroup that `rdrr tune` measures."""

MAX_GROUP = 8

BLOCK = 64
"""Fewest keys of a split of a batch."""

MIN_TEAM = 8
"""Fewest threads that share a key: each of up to `MAX_GROUP` heads has a thread of its own that
completes the score. Subgroups of fewer threads are rare."""

MAX_TEAM = 32
"""Most threads that share a key, since few subgroups are larger."""

MAX_WORDS = 4
"""Most words of a key, and of a value, that a thread loads at a time."""

MAX_SUMS = 8
"""Most words of weighted sums, and of queries, that a thread holds. With 16, and 512 threads, an
H200 runs out of registers: llama-1b's attention to 8,192 keys takes 48 us instead of 14."""

MAX_STAGED = 512
"""Most words that the teams add up at once through workgroup memory: 8 KiB."""

GRID_WORDS, GRID_STAGED = 2, 1024
"""`MAX_WORDS` and `MAX_STAGED` of a row on a grid. On an H200 a token of Qwen3 0.6B took 570 us
with 2 words and 577 us with 4, one of Gemma 3 1B 842 us with both, and 849 us without."""

SPLIT = SplitTuning(64, 32)
SHORT_SPLIT = SplitTuning(32, 32)
"""For `FEW_KV_HEADS` or fewer, which occupy few workgroups: on an H200 Gemma 3 1B, with one,
decodes 1.06 times as fast as with `SPLIT`, while Llama 3.2 1B, with 8, loses 2 %."""

GRID_KEYS = 64
"""Fewest keys of a split if the workgroups are those of a grid."""

GRID_SPLITS, FEW_GRID_SPLITS = 8, 4
"""Fewest splits that there may be on a grid, in long contexts and in short ones. With fewer splits
a workgroup has fewer heads, so that more of them read the same keys, but the output projection has
less to combine. On an H200 a token of llama-1b took 487 us with 8 splits behind 512 tokens and 638
behind 8,000, with 4 splits 470 and 713 us; one of llama-8b 1,893 and 2,509, and 1,857 and 2,815."""

SHORT_CONTEXT = 4096
"""Most slots of a short context: both numbers of splits take as long behind half as many tokens."""

FEW_KV_HEADS = 2
ENOUGH_ITEMS = 8
"""Most workgroups of a split among which the query heads of a single row are divided, as many as a
model with 8 key-value heads has anyway. On an H200 a token of Gemma 3 1B took 939 us with one of
its 4 query heads a workgroup, and 1,050 us with all of them."""

WORKGROUPS_AT_ONCE = 256
"""Workgroups of a batch that run at the same time: on an H200 two on each of its processors."""

MAX_BATCH_SPLITS = 16
"""Most splits of a row of a batch, whose partial results are combined."""

DECODE_SPLITS = (
    SplitTuning(32, 32),
    SplitTuning(32, 64),
    SplitTuning(64, 16),
    SplitTuning(64, 64),
    SplitTuning(128, 16),
    SplitTuning(128, 32),
    SplitTuning(256, 8),
)


@dataclass(frozen=True)
class DecodeTuning(Params):
    """Tuning parameters of attention_decode.

    Attributes:
        workgroup: Threads of a workgroup, which computes one split; a power of two.
        heads: Query heads of a workgroup, a divisor of those that share a key-value head. Other
            workgroups read the same keys for the others.
    """

    workgroup: int
    heads: int


@dataclass(frozen=True)
class Shares:
    """How the threads of a workgroup share the keys and elements of a split.

    Attributes:
        threads: Threads of the workgroup, a power of two.
        group: Query heads of the workgroup.
        words: Vectors of 4 elements in a head.
        split_keys: Keys that a split usually has at least.
        most_words: Most words of a key that a thread loads at a time.
        most_staged: Most of `staged`, unless the threads or the vectors need more.
    """

    threads: int
    group: int
    words: int
    split_keys: int
    most_words: int
    most_staged: int

    @property
    def team(self) -> int:
        """See `AttentionDecode.team`: no teams without a key, and few enough words a thread."""
        team = MIN_TEAM
        while team < MAX_TEAM and (
            -(-self.words // team) > min(self.most_words, MAX_SUMS // self.group)
            or self.threads // team > self.split_keys
        ):
            team *= 2
        return team

    @property
    def padded(self) -> int:
        """See `AttentionDecode.padded`."""
        return 1 << (self.group - 1).bit_length()

    @property
    def own_words(self) -> int:
        """See `AttentionDecode.own_words`."""
        return -(-self.words // self.team)

    @property
    def staged(self) -> int:
        """See `AttentionDecode.staged`: enough to add up all sums at once, if that is little."""
        subgroups = -(-self.threads // MAX_TEAM)
        needed = subgroups * self.group * self.own_words * self.team
        return max(self.threads, min(needed, self.most_staged), (self.group + 2) * self.words)

    @property
    def bytes(self) -> int:
        """Bytes of workgroup memory that attention_decode.wgsl declares, at most."""
        vectors = (self.group + 2) * self.words + self.staged + 2 * self.words
        weights = self.group * self.threads // self.team
        return 16 * vectors + 4 * (weights + self.threads + 2 * self.group + 2)

    def parameters(self, *, values_normed: bool) -> dict[str, Any]:
        """Return the fields of an `AttentionDecode` that this decides."""
        vectors = self.group + (2 if values_normed else 1)
        return {
            "group": self.group,
            "padded": self.padded,
            "team": self.team,
            "own_words": self.own_words,
            "summers": min(32, 1 << ((self.threads // vectors).bit_length() - 1)),
            "staged": self.staged,
        }


def default_split(ctx: OpContext, cache: KvSpec, heads: int) -> SplitTuning:
    """Return how the keys of a row are split, unless a tuned profile says otherwise.

    A batch has as many splits as run at the same time: further ones have to wait, even without
    keys. On an H200 in a context of 8,192, a step of 8 rows of llama-1b, which has 8 key-value
    heads, takes 971 us behind 512 tokens and 1,624 us behind 8,192, and with 16 splits instead of 4
    1,066 and 1,820 us. But if one row has 8,000 keys and the others 512, 1,457 instead of 1,164 us.
    A row on a grid has as many as give each workgroup one.

    Args:
        ctx: Lowering context.
        cache: Sizes and type of the caches.
        heads: Query heads.
    """
    items, at_once = cache.kv_heads, WORKGROUPS_AT_ONCE
    if ctx.grid is not None:
        items = heads // heads_of_grid(ctx, heads, cache)
        at_once = ctx.grid.groups
    if ctx.max_rows > 1:
        most = min(MAX_BATCH_SPLITS, at_once // (ctx.max_rows * items), cache.context // BLOCK)
        return SplitTuning(BLOCK, max(1, most))
    if ctx.grid is not None:
        return SplitTuning(GRID_KEYS, max(grid_splits(cache), at_once // items))
    return SHORT_SPLIT if cache.kv_heads <= FEW_KV_HEADS else SPLIT


def decode_tuning(ctx: OpContext, spec: AttentionSpec) -> TuningKey[DecodeTuning]:
    """Return the tuning key of an attention in a pass of `ctx`, with the parameters to use."""
    default = default_tuning(ctx, spec)
    assert default is not None, "refusal has been asked"
    candidates = (DecodeTuning(*values) for values in product(THREADS, divisors(spec.group)))
    rows = f", {ctx.max_rows} rows" if ctx.max_rows > 1 else ""
    return ctx.tuning_key(
        f"attention attention_decode.{spec.shape}{rows}",
        default,
        (candidate for candidate in candidates if _fits(ctx, spec, candidate)),
    )


def default_tuning(ctx: OpContext, spec: AttentionSpec) -> DecodeTuning | None:
    """Return the default parameters, or None if no workgroup fits the device."""
    heads = heads_of_item(ctx, spec)
    usual = (DecodeTuning(threads, heads) for threads in WORKGROUPS)
    return next((tuning for tuning in usual if _fits(ctx, spec, tuning)), None)


def heads_of_item(ctx: OpContext, spec: AttentionSpec) -> int:
    """Return the default query heads of a workgroup, out of those that share a key-value head.

    A row on a grid has as few as leave a workgroup for each of `grid_splits`. A batch has as few as
    leave no more workgroups than run at the same time. A single row has all of them with many
    key-value heads, else as few as leave a split at most `ENOUGH_ITEMS` workgroups. If there is no
    such number, they are all of them.
    """
    if ctx.grid is not None:
        return heads_of_grid(ctx, spec.heads, spec.cache)
    if ctx.max_rows == 1 and spec.cache.kv_heads > FEW_KV_HEADS:
        return spec.group
    whole = ctx.max_rows * spec.splits if ctx.max_rows > 1 else 1
    most = WORKGROUPS_AT_ONCE if ctx.max_rows > 1 else ENOUGH_ITEMS
    enough = (heads for heads in divisors(spec.group) if spec.heads // heads * whole <= most)
    return next(enough, spec.group)


def grid_splits(cache: KvSpec) -> int:
    """Return the fewest splits of the keys of a row on a grid."""
    return FEW_GRID_SPLITS if cache.context <= SHORT_CONTEXT else GRID_SPLITS


def heads_of_grid(ctx: OpContext, heads: int, cache: KvSpec) -> int:
    """Return the default query heads of a workgroup of the grid of `ctx`.

    They are as few as leave a workgroup for each of `grid_splits`, or for each row of a batch,
    whose splits would have to be combined; all that share a key-value head if there is no such
    number.
    """
    assert ctx.grid is not None, "only a grid has a number of workgroups"
    group = heads // cache.kv_heads
    items = grid_splits(cache) if ctx.max_rows == 1 else ctx.max_rows
    enough = (count for count in divisors(group) if heads // count * items <= ctx.grid.groups)
    return next(enough, group)


def divisors(group: int) -> list[int]:
    """Return the numbers of query heads that workgroups may have, at most `MAX_GROUP`."""
    return [heads for heads in range(1, min(group, MAX_GROUP) + 1) if group % heads == 0]


def _fits(ctx: OpContext, spec: AttentionSpec, tuning: DecodeTuning) -> bool:
    """Return whether such a workgroup can run the phase on the device."""
    words, threads = spec.cache.head_dim // 4, tuning.workgroup
    enough = 8 * (tuning.heads + 1) <= threads and words <= threads <= ctx.max_threads
    return enough and shares_of(ctx, spec, tuning).bytes <= ctx.workgroup_storage


def shares_of(ctx: OpContext, spec: AttentionSpec, tuning: DecodeTuning) -> Shares:
    """Return how the threads of a workgroup share the work, in the workgroup memory there is."""
    words, keys = spec.cache.head_dim // 4, spec.split.keys
    one_row = ctx.grid is not None and ctx.max_rows == 1
    limits = (GRID_WORDS, GRID_STAGED) if one_row else (MAX_WORDS, MAX_STAGED)
    most = Shares(tuning.workgroup, tuning.heads, words, keys, *limits)
    return most if most.bytes <= ctx.workgroup_storage else replace(most, most_staged=0)
