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
from rdrr_device.tuning import AnyTuningKey

from rdrr_runtime.phases.attention.attention_decode_tuning import (
    BLOCK,
    MAX_GROUP,
    WORKGROUPS,
    DecodeTuning,
    decode_tuning,
    default_tuning,
    heads_of_item,
    shares_of,
)
from rdrr_runtime.phases.attention.head_transform import (
    NO_TRANSFORM,
    HeadTransform,
    TransformRecord,
)
from rdrr_runtime.phases.attention.spec import AttentionRecord, AttentionSpec
from rdrr_runtime.phases.cache.kv_cache import KV_TYPES, MAX_HEAD_DIM, LayerCache
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import MAX_BUFFERS, Phase, Work, choice

WHOLE_WORDS: Mapping[str, int] = MappingProxyType({"f16": 4, "f32": 4, "q8_0": 64})
"""The head dimension must be a multiple of this, so that a head fills whole words of the cache,
scales included: the new key's words are written while other workgroups read the words beside them.
"""


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


@dataclass(frozen=True)
class RoundedHeads:
    """Where attention leaves its result rounded, as products of several rows read it.

    Attributes:
        y: With `factors` f16 [rows, heads, head_dim], as `half_rows` writes it, else int8 as
            `quantize_small_batch` writes it.
        factors: f32 [rows]; None for int8.
        halves: For int8: whether each 16 elements have a scale, instead of each 32.
    """

    y: BufferSlice
    factors: BufferSlice | None = None
    halves: bool = False

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands by the names under which attention_decode.wgsl declares them."""
        factors = {} if self.factors is None else {"factors": self.factors}
        return {"y": self.y, **factors}

    @property
    def fields(self) -> dict[str, Any]:
        """Field values of an `AttentionDecode`."""
        return {"rounded": "int8" if self.factors is None else "f16", "halves": self.halves}


@dataclass(frozen=True, kw_only=True)
class AttentionDecode(AttentionRecord, TransformRecord):
    """Parameters of attention_decode.wgsl.

    Attributes:
        group: Query heads of an item.
        padded: `group` rounded up to a power of two.
        shared: Query heads that share a key-value head, a multiple of `group`.
        form: What is unusual about the projected heads.
        team: Threads that share a key; a power of two, at most the threads.
        own_words: Vectors of 4 elements of a key, or of the values, that a thread loads.
        summers: Threads that sum up the squares of one vector.
        subgroups: Whether scores and sums are added up with subgroup operations.
        even: Whether the splits share the keys that are left over after whole splits.
        rounded: Type to which the result is rounded; empty for partial results.
        halves: See `RoundedHeads.halves`.
        splits: Number of splits of the keys.
        min_keys: Fewest keys of a split.
        staged: Vectors of 4 elements in the workgroup memory for exchange.
    """

    shader = "attention/attention_decode"
    trusted = True

    group: int = choice()
    padded: int = choice()
    shared: int = choice()
    form: HeadForm = choice(default=HeadForm())
    team: int = choice()
    own_words: int = choice()
    summers: int = choice()
    subgroups: bool = choice()
    even: bool = choice(default=False)
    rounded: str = choice("")
    halves: bool = choice(default=False)
    splits: int
    min_keys: int
    staged: int

    @property
    def fills(self) -> bool:
        """See `Record.fills`."""
        return True


def refusal(
    ctx: OpContext,
    spec: AttentionSpec,
    rotation: HeadTransform = NO_TRANSFORM,
    *,
    normed: bool = False,
) -> str | None:
    """Return why the phase cannot compute an attention, or None if it can.

    Args:
        ctx: Lowering context.
        spec: Specification of the attention.
        rotation: Rope of queries and keys.
        normed: Whether they are normalised.
    """
    dtype, head_dim = spec.cache.dtype, spec.cache.head_dim
    if spec.sinks is not None and normed and rotation.pairs:
        return f"norm, rope and sinks together need more than {MAX_BUFFERS} buffers"
    if not rotation.is_of_words:
        return (
            f"words of 4 elements have to be rotated whole, and {rotation.pairs} pairs are rotated"
        )
    if not spec.causal:
        return "the attention is not causal, so a key is needed before its row runs"
    if ctx.max_rows > 1 and not ctx.multi_sequence:
        return f"the pass has {ctx.max_rows} rows of one sequence"
    if ctx.multi_sequence and KV_TYPES[dtype].block > 1:
        return f"a cache in {dtype} holds one sequence only"
    if heads_of_item(ctx, spec) > MAX_GROUP:
        return f"{spec.group} query heads share a key-value head, and at most {MAX_GROUP} can"
    if head_dim > MAX_HEAD_DIM:
        return f"the head dimension is {head_dim}, and at most {MAX_HEAD_DIM} is supported"
    if head_dim % WHOLE_WORDS[dtype]:
        return f"the head dimension is {head_dim}, not a multiple of {WHOLE_WORDS[dtype]}"
    if default_tuning(ctx, spec) is None:
        fewest = DecodeTuning(WORKGROUPS[-1], heads_of_item(ctx, spec))
        needed = shares_of(ctx, spec, fewest).bytes
        return (
            f"{fewest.workgroup} threads need {needed} bytes of workgroup memory, and "
            f"the device has {ctx.workgroup_storage} for at most {ctx.max_threads}"
        )
    return None


def rounding_refusal(spec: AttentionSpec, rounded: str) -> str | None:
    """Return why an attention cannot leave its result rounded to a type, or None if it can."""
    if spec.splits > 1:
        return f"its keys are in {spec.splits} splits, whose partial results are combined"
    if spec.cache.head_dim % 32 or spec.heads * spec.cache.head_dim % 64:
        return f"{spec.heads} heads of {spec.cache.head_dim} elements are no whole units"
    if rounded == "f16" and spec.cache.dtype != "f16":
        return f"values of a cache in {spec.cache.dtype} may be too large for f16"
    return None


def attention_decode(
    ctx: OpContext,
    projected: BufferSlice,
    caches: LayerCache,
    result: tuple[BufferSlice, BufferSlice] | RoundedHeads,
    *,
    spec: AttentionSpec,
    transform: HeadTransform,
    label: str,
    form: HeadForm = HeadForm(),
    tuning_keys: tuple[AnyTuningKey, ...] = (),
    tuning: DecodeTuning | None = None,
) -> list[Phase]:
    """Lower decode attention to one phase; `refusal` must return None for it.

    Args:
        ctx: Lowering context; no two rows of a pass belong to the same sequence.
        projected: [rows, heads + 2 kv_heads, head_dim]: queries, keys and values as projected,
            see also `form`.
        caches: Key and value cache of the layer, to which the new keys and values are added.
        result: Where the partial results go: weighted sums f32 [rows, heads, splits, head_dim], not
            yet divided by the sum of the weights, and statistics f32 [rows, heads, splits, 2], see
            attention_decode.wgsl. Or where the rounded result goes, if `rounding_refusal` returns
            None for it.
        spec: Specification of the attention.
        transform: Norm and rope of queries and keys.
        label: Name of the op, for messages and profiles.
        form: What is unusual about the heads. With gates, a row of `projected` has 2 heads +
            2 kv_heads vectors, with shared keys only those of the queries.
        tuning_keys: Tuning keys that the splits depend on.
        tuning: Tuning parameters to use instead of the tuned or default ones.
    """
    tuning_key = decode_tuning(ctx, spec)
    used = tuning or tuning_key.used
    if isinstance(result, RoundedHeads):
        rounding, results = result.fields, result.buffers
    else:
        rounding, results = {}, {"sums": result[0], "stats": result[1]}
    record = AttentionDecode(
        threads=used.workgroup,
        variant=spec.cache.dtype,
        subgroups=ctx.subgroups,
        shared=spec.group,
        even=ctx.max_rows > 1 or spec.split.keys > BLOCK,
        splits=spec.splits,
        min_keys=spec.split.keys,
        form=form,
        **shares_of(ctx, spec, used).parameters(values_normed=form.values_normed),
        **transform.parameters,
        **spec.parameters(ctx),
        **rounding,
    )
    buffers = {
        "current": ctx.state.step,
        "projected": projected,
        **caches.buffers,
        **results,
        **transform.buffers,
        **spec.buffers,
    }
    work = Work(spec.heads // used.heads * spec.splits, 1)
    return [Phase(record, buffers, work, label, (tuning_key, *tuning_keys))]
