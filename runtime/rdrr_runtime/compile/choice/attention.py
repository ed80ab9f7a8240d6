"""The choice of a general attention kernel, from a list in order of preference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rdrr_runtime.compile.choice.decision import Chosen, Wish, choose
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.phases.attention.attention import TILE_ROWS, AttentionKernel, refusal
from rdrr_runtime.phases.attention.spec import AttentionSpec
from rdrr_runtime.phases.context import OpContext

SMALL_BATCH = 4
"""Largest number of rows of different sequences for which one workgroup per row and head leaves a
GPU underused, so that the keys are split."""


@dataclass(frozen=True)
class AttentionRequest:
    """The attention of a layer in a pass, for which a kernel is chosen.

    Attributes:
        spec: Heads, cache and window.
        ctx: Rows of the pass, and features and limits of the device.
        max_binding: Bytes of the largest buffer that can be bound.
    """

    spec: AttentionSpec
    ctx: OpContext
    max_binding: int


@dataclass(frozen=True)
class AttentionCandidate:
    """A general attention kernel.

    Attributes:
        kernel: The kernel.
        title: Description of the kernel in explanations.
    """

    kernel: AttentionKernel
    title: str

    def refusal(self, request: AttentionRequest) -> str | None:
        """Return why the kernel cannot run; None if it can."""
        return refusal(self.kernel, request.ctx, request.spec, request.max_binding)


CANDIDATES = (
    AttentionCandidate(AttentionKernel.MATRICES, "attention on matrices of subgroups"),
    AttentionCandidate(AttentionKernel.TILED_LARGE, "attention in large tiles of rows"),
    AttentionCandidate(AttentionKernel.TILED_SMALL, "attention in small tiles of rows"),
    AttentionCandidate(AttentionKernel.SPLIT_KV, "attention with the keys in splits"),
    AttentionCandidate(AttentionKernel.STREAMING, "streaming attention, which serves every size"),
)
"""The kernels in order of preference. Rows of a tile share the keys that they read: on an H200
prompts of 512 and 2,048 tokens took as long as with `streaming` or up to 17 % less. `split_kv`, and
tiles with their keys in splits (`with_splits`), use the whole GPU in passes of up to 32 rows."""


def choose_attention(
    request: AttentionRequest, preferences: Preferences
) -> Chosen[AttentionCandidate]:
    """Choose the kernel of a layer's attention, and give the reason."""
    key = "attentionDecode" if request.ctx.max_rows == 1 else "attentionPrefill"
    hint = preferences.hint(key)
    if hint is not None:
        kernel = AttentionKernel(hint.value)
        wishes: Sequence[Wish[AttentionCandidate]] = [
            Wish(str(hint), lambda candidate: candidate.kernel is kernel, hint)
        ]
        # If the kernel of the hint cannot run, the one that always can replaces it.
        candidates = sorted(
            CANDIDATES, key=lambda candidate: candidate.kernel is not AttentionKernel.STREAMING
        )
        return choose(candidates, lambda candidate: candidate.refusal(request), wishes)
    precision = preferences.hint("computePrecision")
    useful = _useful(request, exact=precision is not None and precision.value == "f32")
    candidates = [candidate for candidate in CANDIDATES if candidate.kernel in useful]
    return choose(candidates, lambda candidate: candidate.refusal(request), ())


def _useful(request: AttentionRequest, *, exact: bool) -> frozenset[AttentionKernel]:
    """Return the kernels that are fast for the rows of a pass, whether or not they can run.

    Args:
        request: The attention.
        exact: Whether nothing is to be rounded to f16.
    """
    rows, multi_sequence = request.ctx.max_rows, request.ctx.multi_sequence
    if rows > 1 and not multi_sequence:
        most = max(rows, min(TILE_ROWS.values()))
        tiles = {kernel for kernel, size in TILE_ROWS.items() if size <= most}
        matrices = set() if exact else {AttentionKernel.MATRICES}
        return frozenset({*matrices, *tiles, AttentionKernel.STREAMING})
    is_small = rows <= (SMALL_BATCH if multi_sequence else 1)
    splits = {AttentionKernel.SPLIT_KV} if is_small and request.spec.splits > 1 else set()
    return frozenset({*splits, AttentionKernel.STREAMING})
