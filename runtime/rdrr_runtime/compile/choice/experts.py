"""The choice of a kernel for a mixture of experts, from a list in order of preference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rdrr_runtime.compile.choice.decision import Chosen, Wish, choose
from rdrr_runtime.compile.choice.preferences import Preferences
from rdrr_runtime.phases.context import OpContext
from rdrr_runtime.phases.experts import tiled as expert_tiled
from rdrr_runtime.phases.experts.tiled import MIN_ROWS
from rdrr_runtime.phases.products.matvec_rows import weights_refusal
from rdrr_runtime.phases.weights.gpu_weight import GpuWeight


@dataclass(frozen=True)
class ExpertRequest:
    """A product with the matrices of all experts, for which a kernel is chosen.

    Attributes:
        ctx: Rows of the pass, and features and limits of the device.
        stack: The stacked matrices of all experts.
        all_stacks: The stacks of gate, up and down, which use int8 together or not at all.
    """

    ctx: OpContext
    stack: GpuWeight
    all_stacks: tuple[GpuWeight, ...]


@dataclass(frozen=True)
class ExpertKernel:
    """A kernel that multiplies rows by the experts that they are routed to.

    Attributes:
        tiled: Whether the rows of an expert share one read of its weights; otherwise each route
            reads them again.
        int8: Whether activations are quantized to int8.
        subgroups: Whether the kernel sums with subgroup operations rather than in workgroup memory,
            where it supports both.
    """

    tiled: bool
    int8: bool
    subgroups: bool = True

    @property
    def title(self) -> str:
        """Description of the kernel in explanations."""
        tiles = "the rows of an expert share its weights"
        how = tiles if self.tiled else "each route reads its expert's weights"
        rounding = ", int8 activations" if self.int8 else ""
        sums = "" if self.subgroups or self.tiled else ", sums through workgroup memory"
        return f"experts{rounding}: {how}{sums}"

    def refusal(self, request: ExpertRequest) -> str | None:
        """Return why the kernel cannot serve a request; None if it can."""
        ctx = request.ctx
        if self.int8 and not ctx.int8_dots:
            return "the device has no int8 dot products"
        reason = weights_refusal(ctx, request.all_stacks) if self.int8 else None
        if reason is None and self.tiled:
            reason = expert_tiled.refusal(ctx)
        if reason is None and self.subgroups and not (self.tiled or self.int8 or ctx.subgroups):
            reason = "the device has no feature subgroup"
        return reason

    def context(self, ctx: OpContext) -> OpContext:
        """Return the context for the kernel's phases."""
        return ctx if self.subgroups else ctx.without_subgroups()


CANDIDATES = (
    ExpertKernel(tiled=True, int8=True),
    ExpertKernel(tiled=False, int8=True),
    ExpertKernel(tiled=True, int8=False),
    ExpertKernel(tiled=False, int8=False),
    ExpertKernel(tiled=False, int8=False, subgroups=False),
)


def choose_experts(request: ExpertRequest, preferences: Preferences) -> Chosen[ExpertKernel]:
    """Choose the kernel of a product with experts; the reason includes changes made at load."""
    wishes = _wishes(request, preferences)
    chosen = choose(CANDIDATES, lambda candidate: candidate.refusal(request), wishes)
    if not request.stack.note:
        return chosen
    text = f"{request.stack.note}; {chosen.reason.text}"
    return Chosen(chosen.candidate, replace(chosen.reason, text=text))


def _wishes(request: ExpertRequest, preferences: Preferences) -> Sequence[Wish[ExpertKernel]]:
    arithmetic = preferences.arithmetic
    if request.stack.dtype.is_block:
        int8 = arithmetic.int8
        return [Wish(arithmetic.source, lambda kernel: kernel.int8 is int8, arithmetic.hint)]
    floats = Wish[ExpertKernel]("auto", lambda kernel: not kernel.int8)
    hint = preferences.hint("f16Matmul")
    if hint is None:
        return [floats]
    if hint.value == "tiled":
        return [floats, Wish(str(hint), lambda kernel: kernel.tiled and not kernel.int8, hint)]
    if hint.value == "int8" or request.ctx.max_rows >= MIN_ROWS:
        return [floats]  # gemv and gemv_subgroup concern small batches, int8 no experts
    chosen = ExpertKernel(tiled=False, int8=False, subgroups=hint.value == "gemv_subgroup")
    return [floats, Wish(str(hint), lambda kernel: kernel == chosen, hint)]
