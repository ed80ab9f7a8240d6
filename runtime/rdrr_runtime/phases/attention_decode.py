"""Decode attention directly from the projections: norms, rope, cache update and attention fused.

The phase writes the partial results of the splits of the keys. `matvec` combines them when it reads
its input for the output projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rdrr_device.buffers import BufferSlice
from rdrr_device.tuning import AnyTuningKey, Params

from rdrr_runtime.phases.attention_spec import AttentionRecord, AttentionSpec, SplitTuning
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.head_transform import HeadTransform, TransformRecord
from rdrr_runtime.phases.kv_cache import KV_TYPES, MAX_HEAD_DIM, KvSpec, LayerCache
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase, Work, choice

WORKGROUPS = (256, 128)
"""Threads of a workgroup, in order of preference; the first only if a full context makes splits
longer than `SPLIT.keys`."""

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
MAX_BATCH_SPLITS = 16
"""Most splits of a row of a batch, whose partial results are combined."""

SPLITS = (
    SplitTuning(32, 32),
    SplitTuning(32, 64),
    SplitTuning(64, 16),
    SplitTuning(64, 64),
    SplitTuning(128, 16),
    SplitTuning(128, 32),
    SplitTuning(256, 8),
)

WHOLE_WORDS: Mapping[str, int] = MappingProxyType({"f16": 4, "f32": 4, "q8_0": 64})
"""The head dimension must be a multiple of this, so that a head fills whole words of the cache,
scales included: the new key's words are written while other workgroups read the words beside them.
"""


@dataclass(frozen=True)
class DecodeTuning(Params):
    """Tuning parameters of attention_decode.

    Attributes:
        workgroup: Threads of a workgroup, which computes one split; a power of two.
    """

    workgroup: int


CANDIDATES = tuple(DecodeTuning(threads) for threads in (64, 128, 256, 512))


@dataclass(frozen=True)
class HeadForm:
    """What is unusual about the projected heads of a row; by default nothing is.

    Attributes:
        gated: Whether a gate follows each query; the output projection applies it.
        norm_after_rope: Whether heads are normalised after they are rotated, not before.
        norm_spans_heads: Whether a norm's mean square is that of all heads together, with gains for
            each element of each head.
        values_normed: Whether values are normalised too, without gains.
        shares_keys: Whether there are queries only, because the cache belongs to an earlier layer,
            which has already added the keys and values of the row.
    """

    gated: bool = False
    norm_after_rope: bool = False
    norm_spans_heads: bool = False
    values_normed: bool = False
    shares_keys: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionDecode(AttentionRecord, TransformRecord):
    """Parameters of attention_decode.wgsl.

    Attributes:
        group: Query heads that share a key-value head.
        form: What is unusual about the projected heads.
        keys: Keys computed at a time; a power of two, at most the threads.
        held: Query heads whose sums a thread holds.
        blocks: Blocks of `held` heads in the group.
        key_words: Words of a key that a thread loads.
        value_words: Words of the values that a thread loads, each of another key.
        rounds: Scores of the keys and heads that a thread completes.
        summers: Threads that sum up the squares of one vector.
        subgroups: Whether the maximum score is reduced with subgroup operations.
        even: Whether the splits share the keys that are left over after whole splits.
        splits: Number of splits of the keys.
        min_keys: Fewest keys of a split.
        staged: Vectors of 4 elements in the workgroup memory for sums.
    """

    shader = "attention_decode"
    trusted = True

    group: int = choice()
    form: HeadForm = choice(default=HeadForm())
    keys: int = choice()
    held: int = choice()
    blocks: int = choice()
    key_words: int = choice()
    value_words: int = choice()
    rounds: int = choice()
    summers: int = choice()
    subgroups: bool = choice()
    even: bool = choice(default=False)
    splits: int
    min_keys: int
    staged: int


@dataclass(frozen=True)
class _Shares:
    """How the threads of a workgroup share the keys, values and heads of a split.

    Attributes:
        threads: Threads of the workgroup, a power of two.
        group: Query heads that share a key-value head.
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

    def summers(self, vectors: int) -> int:
        """See `AttentionDecode.summers`; `vectors` are normalised."""
        each = self.threads // vectors
        return min(32, 1 << (each.bit_length() - 1))

    @property
    def bytes(self) -> int:
        """Bytes of workgroup memory that attention_decode.wgsl declares, at most."""
        vectors = (self.group + 2) * self.words + self.staged + 2 * self.words
        scores = self.group * self.parts * (self.keys + 32 // self.parts)
        weights = self.blocks * self.held * (self.keys + self.lanes)
        return 16 * vectors + 4 * (scores + weights + 2 * self.group + 1)

    def parameters(self, form: HeadForm) -> dict[str, Any]:
        """Return the fields of an `AttentionDecode`."""
        return {
            "group": self.group,
            "keys": self.keys,
            "held": self.held,
            "blocks": self.blocks,
            "key_words": -(-self.words // self.parts),
            "value_words": self.value_words,
            "rounds": -(-self.group * self.keys // self.threads),
            "summers": self.summers(self.group + (2 if form.values_normed else 1)),
            "form": form,
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


def refusal(ctx: OpContext, spec: AttentionSpec, *, norm_and_rope: bool = False) -> str | None:
    """Return why the phase cannot compute an attention, or None if it can.

    Args:
        ctx: Lowering context.
        spec: Specification of the attention.
        norm_and_rope: Whether queries and keys are both normalised and rotated.
    """
    dtype, head_dim = spec.cache.dtype, spec.cache.head_dim
    if spec.sinks is not None and norm_and_rope:
        return f"norm, rope and sinks together need more than {MAX_BUFFERS} buffers"
    if not spec.causal:
        return "the attention is not causal, so a key is needed before its row runs"
    if ctx.max_rows > 1 and not ctx.multi_sequence:
        return f"the pass has {ctx.max_rows} rows of one sequence"
    if ctx.multi_sequence and KV_TYPES[dtype].block > 1:
        return f"a cache in {dtype} holds one sequence only"
    if spec.group > MAX_GROUP:
        return f"{spec.group} query heads share a key-value head, and at most {MAX_GROUP} can"
    if head_dim > MAX_HEAD_DIM:
        return f"the head dimension is {head_dim}, and at most {MAX_HEAD_DIM} is supported"
    if head_dim % WHOLE_WORDS[dtype]:
        return f"the head dimension is {head_dim}, not a multiple of {WHOLE_WORDS[dtype]}"
    if not _threads(ctx, spec):
        fewest = WORKGROUPS[-1]
        return (
            f"{fewest} threads need {_shares(ctx, spec, fewest).bytes} bytes of workgroup "
            f"memory, and the device has {ctx.workgroup_storage} for at most {ctx.max_threads}"
        )
    return None


def attention_decode(
    ctx: OpContext,
    projected: BufferSlice,
    caches: LayerCache,
    partial: tuple[BufferSlice, BufferSlice],
    *,
    spec: AttentionSpec,
    transform: HeadTransform,
    label: str,
    form: HeadForm = HeadForm(),
    tuning_keys: tuple[AnyTuningKey, ...] = (),
) -> list[Phase]:
    """Lower decode attention to one phase; `refusal` must return None for it.

    Args:
        ctx: Lowering context; no two rows of a pass belong to the same sequence.
        projected: [rows, heads + 2 kv_heads, head_dim]: queries, keys and values as projected,
            see also `form`.
        caches: Key and value cache of the layer, to which the new keys and values are added.
        partial: The results: weighted sums f32 [rows, heads, splits, head_dim], not yet divided by
            the sum of the weights, and statistics f32 [rows, heads, splits, 2], see
            attention_decode.wgsl.
        spec: Specification of the attention.
        transform: Norm and rope of queries and keys.
        label: Name of the op, for messages and profiles.
        form: What is unusual about the heads. With gates, a row of `projected` has 2 heads +
            2 kv_heads vectors, with shared keys only those of the queries.
        tuning_keys: Tuning keys that the splits depend on.
    """
    rows = f", {ctx.max_rows} rows" if ctx.max_rows > 1 else ""
    tuning_key = ctx.tuning_key(
        f"attention attention_decode.{spec.shape}{rows}",
        DecodeTuning(ctx.threads(_threads(ctx, spec))),
        (one for one in CANDIDATES if _fits(ctx, spec, one.workgroup)),
    )
    record = AttentionDecode(
        threads=tuning_key.used.workgroup,
        variant=spec.cache.dtype,
        subgroups=ctx.subgroups,
        even=spec.split.keys > MAX_KEYS,
        splits=spec.splits,
        min_keys=spec.split.keys,
        **_shares(ctx, spec, tuning_key.used.workgroup).parameters(form),
        **transform.parameters,
        **spec.parameters(ctx),
    )
    buffers = {
        "current": ctx.state.step,
        "projected": projected,
        **caches.buffers,
        "sums": partial[0],
        "stats": partial[1],
        **transform.buffers,
        **spec.buffers,
    }
    work = Work(spec.cache.kv_heads * spec.splits, 1)
    return [Phase(record, buffers, work, label, (tuning_key, *tuning_keys))]


def _threads(ctx: OpContext, spec: AttentionSpec) -> int:
    """Return the default threads of a workgroup, or 0 if no workgroup fits the device."""
    is_long = spec.cache.max_keys(spec.reach) > SPLIT.most * SPLIT.keys
    fitting = (one for one in WORKGROUPS[not is_long :] if _fits(ctx, spec, one))
    return next(fitting, 0)


def _fits(ctx: OpContext, spec: AttentionSpec, threads: int) -> bool:
    """Return whether a workgroup of `threads` threads can run the phase on the device."""
    words = spec.cache.head_dim // 4
    enough = 8 * (spec.group + 1) <= threads and words <= threads <= ctx.max_threads
    return enough and _shares(ctx, spec, threads).bytes <= ctx.workgroup_storage


def _shares(ctx: OpContext, spec: AttentionSpec, threads: int) -> _Shares:
    """Return how `threads` threads share the work.

    A thread holds the sums of as few heads as possible, which saves registers and workgroup memory,
    unless it would then load more than `ENOUGH_WORDS` words of the values for a block of keys.
    """
    words = spec.cache.head_dim // 4
    found = [
        _Shares(threads, spec.group, words, held, min(spec.split.keys, MAX_KEYS))
        for held in range(1, spec.group + 1)
        if words * -(-spec.group // held) <= threads
    ]
    affordable = [one for one in found if one.bytes <= ctx.workgroup_storage] or found[:1]
    enough = (one for one in affordable if one.lanes * ENOUGH_WORDS >= one.most_keys)
    return next(enough, affordable[-1])
