"""The specification of a layer's attention, and the parameters that all attention phases share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rdrr_device.buffers import BufferSlice, align
from rdrr_device.tuning import Params
from rdrr_format.errors import FormatError
from rdrr_manifests.graph.attention_ops import distance_buckets

from rdrr_runtime.phases.cache.kv_cache import CacheRecord, KvSpec
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.phase import choice


@dataclass(frozen=True)
class SplitTuning(Params):
    """How the keys of a row are split among workgroups, each computing a partial softmax.

    Attributes:
        keys: Keys of a split. Splits are longer than this only when `most` limits their number.
        most: Largest number of splits.
    """

    keys: int
    most: int


@dataclass(frozen=True, kw_only=True)
class AttentionRecord(CacheRecord):
    """Parameters of cache/snippets/kv.wgsl and snippets/scores.wgsl.

    Attributes:
        sinks: Whether the softmax of each head includes a sink.
        chunk: Length of the chunks of slots that a row attends within; None for none.
        images: None for none.
        segments: Whether rows attend to their own text only, one of several in the pass.
        buckets: For a bias by distance: the distances with a bucket each, the buckets of one side,
            and the first distance of each further bucket; empty for no bias.
    """

    heads: int
    scale: float
    window: int
    softcap: float
    sinks: bool = choice(default=False)
    segments: bool = choice(default=False)
    buckets: tuple[int, ...] = choice(default=())
    alibi: float = choice(default=0.0)
    chunk: int | None = None
    images: int | None = None


@dataclass(frozen=True)
class DistanceBias:
    """A bias on the scores by the distance of two slots.

    Attributes:
        values: f32 [buckets, heads].
        buckets: See `AttentionRecord`.
    """

    values: BufferSlice
    buckets: tuple[int, ...]

    @staticmethod
    def of(values: BufferSlice, buckets: int, distance: int) -> DistanceBias:
        """Return the bias of an op of the graph.

        Args:
            values: f32 [buckets, heads].
            buckets: Number of buckets on both sides.
            distance: Distance from which all slots are in the last bucket.
        """
        half = buckets // 2
        single = half // 2
        steps = distance_buckets(buckets, distance)
        firsts = (steps.index(bucket) for bucket in sorted({*steps} - {*range(single + 1)}))
        return DistanceBias(values, (single, half, *firsts))


@dataclass(frozen=True)
class AttentionSpec:
    """What the attention of a layer computes.

    Attributes:
        heads: Query heads, a multiple of the key-value heads of the cache.
        cache: Sizes and type of the caches.
        scale: Factor on the scores.
        window: Size of the sliding window in slots, the row's own slot included; 0 for none.
        softcap: Bound that tanh puts on the scores; 0 for none.
        split: How the keys are split, for kernels that split them.
        rows: Consecutive rows that share the splits, which contain the keys of all of them.
        sinks: f32 [heads], a logit for each head that the softmax includes without a value; None
            for none.
        chunk: Length of the chunks of slots that a row attends within; 0 for none.
        causal: Whether a row attends only to slots up to its own. If not, it also attends to those
            of later rows of the pass, and the window lies on both sides of its slot.
        segments: The texts of the rows, if attention is not causal: rows attend to their own only.
        bias: A bias on the scores by distance; None for none.
        alibi: See `Attention.alibi` of the graph; 0 for none.
        images: The token from which on tokens are those of images, whose rows attend to all of
            their image: this and the slot behind the image. All rows of an image are in a pass. 0
            if no row attends to later ones.
    """

    heads: int
    cache: KvSpec
    scale: float
    window: int = 0
    softcap: float = 0.0
    split: SplitTuning = SplitTuning(256, 32)
    rows: int = 1
    sinks: BufferSlice | None = None
    chunk: int = 0
    causal: bool = True
    segments: BufferSlice | None = None
    bias: DistanceBias | None = None
    alibi: float = 0.0
    images: int = 0

    @property
    def group(self) -> int:
        """Query heads that share a key-value head (the group size of grouped-query attention)."""
        return self.heads // self.cache.kv_heads

    @property
    def reach(self) -> int:
        """Most slots that a row attends to, if a window or chunks limit them; otherwise 0."""
        window = self.window if self.causal else 2 * self.window
        limits = [limit for limit in (window, self.chunk) if limit]
        return min(limits, default=0)

    @property
    def unsplit(self) -> AttentionSpec:
        """The same attention with one split of the keys."""
        return replace(self, split=SplitTuning(self.cache.context, 1))

    @property
    def splits(self) -> int:
        """Number of splits, chosen for a full context."""
        keys = self.cache.max_keys(self.reach and self.reach + self.rows - 1)
        return max(1, min(self.split.most, -(-keys // self.split.keys)))

    @property
    def shape(self) -> str:
        """Cache type, heads and number of keys, as they appear in tuning keys."""
        return self.cache.shape(self.heads, self.reach)

    def sums_bytes(self, rows: int) -> int:
        """Bytes of the partial sums of all splits, f32 [rows, heads, splits, head_dim]."""
        return 4 * rows * self.heads * self.splits * self.cache.head_dim

    def stats_bytes(self, rows: int) -> int:
        """Bytes of the splits' statistics, f32 [rows, heads, splits, 2]: maximum and exp sum."""
        return 8 * rows * self.heads * self.splits

    def stats_offset(self, rows: int) -> int:
        """Offset of the statistics of the splits in a scratch buffer, whose sums come first."""
        return align(self.sums_bytes(rows))

    def scratch_bytes(self, rows: int) -> int:
        """Bytes of a scratch buffer for the partial results of passes of up to `rows` rows."""
        return self.stats_offset(rows) + self.stats_bytes(rows)

    def parameters(self, ctx: OpContext) -> dict[str, Any]:
        """Return the fields of an `AttentionRecord`."""
        return {
            **self.cache.parameters(ctx),
            "heads": self.heads,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks is not None,
            "chunk": self.chunk or None,
            "images": self.images or None,
            "segments": self.segments is not None,
            "buckets": () if self.bias is None else self.bias.buckets,
            "alibi": self.alibi,
        }

    @property
    def buffers(self) -> dict[str, BufferSlice]:
        """Operands of all kernels, by the names under which shaders declare them."""
        values = None if self.bias is None else self.bias.values
        operands = {"sinks": self.sinks, "segments": self.segments, "bias": values}
        return {name: buffer for name, buffer in operands.items() if buffer is not None}

    def check_groups(self, label: str) -> None:
        """Check that every key-value head is shared by the same number of query heads.

        Raises:
            FormatError: The query heads are not a multiple of the key-value heads.
        """
        if self.heads % self.cache.kv_heads:
            raise FormatError(
                "the query heads do not divide evenly among the key-value heads",
                where=label,
                expected=f"a multiple of {self.cache.kv_heads}",
                found=self.heads,
            )
