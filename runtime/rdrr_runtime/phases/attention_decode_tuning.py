"""Tuning parameters of decode attention: how workgroups and their threads share keys and heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rdrr_device.tuning import Params, TuningKey

from rdrr_runtime.phases.attention_spec import AttentionSpec, SplitTuning
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import KvSpec

WORKGROUPS = (512, 256, 128)
"""Threads of a workgroup, in order of preference up to those that `default_tuning` wants."""

THREADS = (64, 128, 256, 512)
"""Threads of a workgroup that `rdrr tune` measures."""

MAX_GROUP = 8
MAX_KEYS = 64
"""Most keys that are computed at a time. With more, fewer threads share a key, so that their loads
touch more lines of the cache: on an H200 32 rows with 8 key-value heads each take 25 us in blocks
of 64 keys, 28 to 35 us in blocks of 128."""

MAX_WORDS = 16
"""Most words of keys, and of values, that a thread keeps in registers."""

ENOUGH_WORDS = 8
"""Words of the values that a thread loads if it holds the sums of enough heads."""

SPLIT = SplitTuning(64, 32)
SHORT_SPLIT = SplitTuning(32, 32)
"""For `FEW_KV_HEADS` or fewer, which occupy few workgroups: on an H200 Gemma 3 1B, with one,
decodes 1.06 times as fast as with `SPLIT`, while Llama 3.2 1B, with 8, loses 2 %."""

FEW_KV_HEADS = 2
ENOUGH_ITEMS = 8
"""Most workgroups of a split among which the query heads of a single row are divided, as many as a
model with 8 key-value heads has anyway. On an H200 a token of Gemma 3 1B takes 939 us with one of
its 4 query heads and 512 threads a workgroup, and 1,050 us with all of them and fewer threads."""

VALUE_THREADS = 8
"""Threads that share 4 elements of the output where query heads are divided: each loads 4 words of
the values of a block of 32 keys."""

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
    """How the threads of a workgroup share the keys, values and heads of a split.

    Attributes:
        threads: Threads of the workgroup, a power of two.
        group: Query heads of the workgroup.
        words: Vectors of 4 elements in a head.
        held: See `AttentionDecode.held`.
        most_keys: Most keys at a time.
    """

    threads: int
    group: int
    words: int
    held: int
    most_keys: int

    @property
    def blocks(self) -> int:
        """See `AttentionDecode.blocks`."""
        return -(-self.group // self.held)

    @property
    def lanes(self) -> int:
        """Threads that share a vector of the sums; 0 if there are too few threads."""
        return self.threads // (self.words * self.blocks)

    @property
    def keys(self) -> int:
        """See `AttentionDecode.keys`: few enough that a thread keeps its words in registers."""
        by_key = MAX_WORDS * self.threads // self.words
        most = min(self.most_keys, self.threads, by_key, MAX_WORDS * self.lanes)
        return 1 << (max(1, most).bit_length() - 1)

    @property
    def value_words(self) -> int:
        """See `AttentionDecode.value_words`."""
        return -(-self.keys // self.lanes)

    @property
    def parts(self) -> int:
        """Threads that share a key."""
        return self.threads // self.keys

    @property
    def staged(self) -> int:
        """See `AttentionDecode.staged`."""
        return max(self.held * self.threads, (self.group + 2) * self.words)

    @property
    def bytes(self) -> int:
        """Bytes of workgroup memory that attention_decode.wgsl declares, at most."""
        vectors = (self.group + 2) * self.words + self.staged + 2 * self.words
        scores = self.group * self.parts * (self.keys + 32 // self.parts)
        weights = self.blocks * self.held * (self.keys + self.lanes)
        return 16 * vectors + 4 * (scores + weights + 2 * self.group + 1)

    def parameters(self, *, values_normed: bool) -> dict[str, Any]:
        """Return the fields of an `AttentionDecode` that this decides."""
        vectors = self.group + (2 if values_normed else 1)
        return {
            "group": self.group,
            "keys": self.keys,
            "held": self.held,
            "blocks": self.blocks,
            "key_words": -(-self.words // self.parts),
            "value_words": self.value_words,
            "rounds": -(-self.group * self.keys // self.threads),
            "summers": min(32, 1 << ((self.threads // vectors).bit_length() - 1)),
            "staged": self.staged,
        }


def default_split(cache: KvSpec, rows: int) -> SplitTuning:
    """Return how the keys of a row are split, unless a tuned profile says otherwise.

    Each split costs its workgroup the same latencies, so the splits of a batch are the longer the
    more workgroups its rows and key-value heads are. On an H200 splits of 128, 256 and 512 keys are
    fastest for 8, 16 and 32 rows behind 512 tokens with 8 key-value heads: all take 256 workgroups.
    """
    if rows > 1:
        keys = max(1, 2 * rows * cache.kv_heads // MAX_KEYS) * MAX_KEYS  # whole blocks
        # Splits of several blocks share the keys left over, so a split for these would be empty.
        used = cache.context // keys if keys > MAX_KEYS else MAX_BATCH_SPLITS
        return SplitTuning(keys, max(1, min(MAX_BATCH_SPLITS, used)))
    return SHORT_SPLIT if cache.kv_heads <= FEW_KV_HEADS else SPLIT


def decode_tuning(ctx: OpContext, spec: AttentionSpec) -> TuningKey[DecodeTuning]:
    """Return the tuning key of an attention in a pass of `ctx`, with the parameters to use."""
    default = default_tuning(ctx, spec)
    assert default is not None, "refusal has been asked"
    default = replace(default, workgroup=ctx.threads(default.workgroup))
    heads = [one for one in (default.heads, spec.group) if one <= MAX_GROUP]
    candidates = (DecodeTuning(*one) for one in product(THREADS, heads))
    rows = f", {ctx.max_rows} rows" if ctx.max_rows > 1 else ""
    return ctx.tuning_key(
        f"attention attention_decode.{spec.shape}{rows}",
        default,
        (one for one in candidates if _fits(ctx, spec, one)),
    )


def default_tuning(ctx: OpContext, spec: AttentionSpec) -> DecodeTuning | None:
    """Return the default parameters, or None if no workgroup fits the device.

    More than the fewest threads are for splits that a full context makes longer than `SPLIT.keys`,
    and for vectors of which `VALUE_THREADS` share each 4 elements where query heads are divided.
    """
    heads = heads_of_item(ctx, spec)
    is_long = spec.cache.max_keys(spec.reach) > SPLIT.most * SPLIT.keys
    most = WORKGROUPS[-2] if is_long else WORKGROUPS[-1]
    if heads < spec.group:
        most = max(most, VALUE_THREADS * spec.cache.head_dim // 4)
    usual = (DecodeTuning(threads, heads) for threads in WORKGROUPS if threads <= most)
    return next((one for one in usual if _fits(ctx, spec, one)), None)


def heads_of_item(ctx: OpContext, spec: AttentionSpec) -> int:
    """Return the default query heads of a workgroup, out of those that share a key-value head.

    They are all of them in a batch and with many key-value heads, else as few as leave a split at
    most `ENOUGH_ITEMS` workgroups.
    """
    if ctx.max_rows > 1 or spec.cache.kv_heads > FEW_KV_HEADS:
        return spec.group
    divisors = (one for one in range(1, spec.group) if spec.group % one == 0)
    return next((one for one in divisors if spec.heads // one <= ENOUGH_ITEMS), spec.group)


def _fits(ctx: OpContext, spec: AttentionSpec, tuning: DecodeTuning) -> bool:
    """Return whether such a workgroup can run the phase on the device."""
    words, threads = spec.cache.head_dim // 4, tuning.workgroup
    enough = 8 * (tuning.heads + 1) <= threads and words <= threads <= ctx.max_threads
    return enough and shares_of(ctx, spec, tuning).bytes <= ctx.workgroup_storage


def shares_of(ctx: OpContext, spec: AttentionSpec, tuning: DecodeTuning) -> Shares:
    """Return how the threads of a workgroup share the work.

    A thread holds the sums of as few heads as possible, which saves registers and workgroup memory,
    unless it would then load more than `ENOUGH_WORDS` words of the values for a block of keys.
    """
    words, threads, group = spec.cache.head_dim // 4, tuning.workgroup, tuning.heads
    found = [
        Shares(threads, group, words, held, min(spec.split.keys, MAX_KEYS))
        for held in range(1, group + 1)
        if words * -(-group // held) <= threads
    ]
    affordable = [one for one in found if one.bytes <= ctx.workgroup_storage] or found[:1]
    enough = (one for one in affordable if one.lanes * ENOUGH_WORDS >= one.most_keys)
    return next(enough, affordable[-1])
