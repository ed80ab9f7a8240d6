"""The general attention kernels in order of preference, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_runtime.compile.decision import Chosen, Wish, choose
from rdrr_runtime.compile.preferences import Preferences
from rdrr_runtime.phases.attention import TILE_ROWS, AttentionKernel, AttentionSpec, tile_keys
from rdrr_runtime.phases.context import OpContext

FEW_SEQUENCES = 4
"""Rows, each of another sequence, that with one workgroup per head leave a GPU idle."""

ORDER = (
    AttentionKernel.TILED_LARGE,
    AttentionKernel.TILED_SMALL,
    AttentionKernel.SPLIT_KV,
    AttentionKernel.STREAMING,
)
"""Tiles share the keys that they read. On an H200 prompts of 512 and 2,048 tokens took as long as
with `streaming` or up to 17 % less. `split_kv` fills a GPU where rows are few and keys are many."""

TITLES = {
    AttentionKernel.TILED_LARGE: "attention in large tiles of rows",
    AttentionKernel.TILED_SMALL: "attention in small tiles of rows",
    AttentionKernel.SPLIT_KV: "attention with the keys in splits",
    AttentionKernel.STREAMING: "streaming attention, which serves every size",
}


@dataclass(frozen=True)
class AttentionRequest:
    """What is computed, and where.

    Attributes:
        spec: Heads, cache and window.
        ctx: Where it runs.
        max_binding: Bytes of the largest buffer that can be bound.
    """

    spec: AttentionSpec
    ctx: OpContext
    max_binding: int


@dataclass(frozen=True)
class AttentionCandidate:
    """A general attention kernel."""

    kernel: AttentionKernel

    @property
    def title(self) -> str:
        """What it is, for explanations."""
        return TITLES[self.kernel]

    def refusal(self, request: AttentionRequest) -> str | None:
        """Return why it cannot run; None if it can."""
        spec, ctx = request.spec, request.ctx
        if self.kernel in TILE_ROWS:
            rows = TILE_ROWS[self.kernel]
            if ctx.state.slot_mapping is not None:
                return "rows of several sequences share no keys"
            if not tile_keys(spec, rows, ctx.workgroup_storage):
                size = f"{rows} rows of {spec.cache.head_dim} elements"
                return f"{size} exceed the device's workgroup memory"
        scratch = spec.scratch_size(ctx.max_rows)
        if self.kernel is AttentionKernel.SPLIT_KV and scratch > request.max_binding:
            return f"its scratch of {scratch} bytes exceeds the device's binding limit"
        return None


CANDIDATES = tuple(AttentionCandidate(kernel) for kernel in ORDER)


def choose_attention(
    request: AttentionRequest, preferences: Preferences
) -> Chosen[AttentionCandidate]:
    """Return the kernel of a layer's attention and why."""
    key = "attentionDecode" if request.ctx.max_rows == 1 else "attentionPrefill"
    hint = preferences.hint(key)
    if hint is not None:
        wanted = AttentionKernel(hint.value)
        wishes: Sequence[Wish[AttentionCandidate]] = [
            Wish(str(hint), lambda one: one.kernel is wanted, hint)
        ]
        # What replaces a kernel that cannot run is the one that always can.
        candidates = sorted(CANDIDATES, key=lambda one: one.kernel is not AttentionKernel.STREAMING)
        return choose(candidates, lambda one: one.refusal(request), wishes)
    useful = _useful(request)
    candidates = [one for one in CANDIDATES if one.kernel in useful]
    return choose(candidates, lambda one: one.refusal(request), ())


def _useful(request: AttentionRequest) -> frozenset[AttentionKernel]:
    """Return the kernels that suit the rows of a pass, where all of them can run."""
    rows, mapped = request.ctx.max_rows, request.ctx.state.slot_mapping is not None
    if rows > 1 and not mapped:
        tiles = {AttentionKernel.TILED_LARGE, AttentionKernel.TILED_SMALL}
        return frozenset({*tiles, AttentionKernel.STREAMING})
    few = rows <= (FEW_SEQUENCES if mapped else 1)
    splits = {AttentionKernel.SPLIT_KV} if few and request.spec.splits > 1 else set()
    return frozenset({*splits, AttentionKernel.STREAMING})
