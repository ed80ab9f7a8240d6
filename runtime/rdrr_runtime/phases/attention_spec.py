"""What attention computes, and the parameters that all of its phases share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rdrr_device.tuning import Params
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.kv_cache import CacheRecord, KvSpec


@dataclass(frozen=True)
class SplitTuning(Params):
    """How the keys of a row are split among workgroups, each with a softmax of its own.

    Attributes:
        keys: Keys of a split, where there are fewer splits than `most`.
        most: Most splits.
    """

    keys: int
    most: int


@dataclass(frozen=True, kw_only=True)
class AttentionRecord(CacheRecord):
    """Parameters of snippets/kv.wgsl and snippets/scores.wgsl.

    Attributes:
        heads: Query heads.
        scale: Factor on the scores.
        window: Slots that a row attends to, its own included; 0 for all.
        softcap: Bound of the scores by tanh; 0 for none.
    """

    heads: int
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True)
class AttentionSpec:
    """What a layer's attention computes.

    Attributes:
        heads: Query heads, a multiple of the caches' heads.
        cache: Sizes and type of the caches.
        scale: Factor on the scores.
        window: Slots that a row attends to, its own included; 0 for all.
        softcap: Bound of the scores by tanh; 0 for none.
        split: How keys are split, where they are.
    """

    heads: int
    cache: KvSpec
    scale: float
    window: int = 0
    softcap: float = 0.0
    split: SplitTuning = SplitTuning(256, 32)

    @property
    def group(self) -> int:
        """Query heads of a key-value head."""
        return self.heads // self.cache.kv_heads

    @property
    def splits(self) -> int:
        """Splits of the keys of a full context."""
        return max(1, min(self.split.most, -(-self.cache.max_keys(self.window) // self.split.keys)))

    @property
    def shape(self) -> str:
        """Heads, cache and keys, for tuning keys."""
        return self.cache.shape(self.heads, self.window)

    def sums_bytes(self, rows: int) -> int:
        """Bytes of the partial sums of all splits, f32 [rows, heads, splits, head_dim]."""
        return 4 * rows * self.heads * self.splits * self.cache.head_dim

    def stats_bytes(self, rows: int) -> int:
        """Bytes of the splits' largest scores and sums of exponentials."""
        return 8 * rows * self.heads * self.splits

    def parameters(self, ctx: OpContext) -> dict[str, Any]:
        """Return the fields of an `AttentionRecord`."""
        return {
            **self.cache.parameters(ctx),
            "heads": self.heads,
            "scale": self.scale,
            "window": self.window,
            "softcap": self.softcap,
        }

    def check_groups(self, label: str) -> None:
        """Guard of the number of heads.

        Raises:
            FormatError: Key-value heads serve different numbers of query heads.
        """
        if self.heads % self.cache.kv_heads:
            raise FormatError(
                "query heads do not divide into groups",
                where=label,
                expected=f"a multiple of {self.cache.kv_heads}",
                found=self.heads,
            )
