"""The selection of experts in a mixture of experts (MoE), with their routing weights.

router_topk       select the top-k experts of each row, with their routing weights
"""

from __future__ import annotations

from dataclasses import dataclass

from rdrr_device.buffers import BufferSlice
from rdrr_format.errors import FormatError

from rdrr_runtime.phases.context import OpContext, need_floats, power_of_two
from rdrr_runtime.phases.phase import Phase, Record, Work, choice
from rdrr_runtime.phases.routes import Routed, need_routes


@dataclass(frozen=True)
class RouterSpec:
    """How experts are selected and weighted; see `rdrr_manifests.graph.ops.Router`.

    Attributes:
        experts: Number of experts.
        top_k: Experts selected for a row.
        normalize: Whether the routing weights of a row are divided by their sum.
        scoring: `softmax` over all experts, `sigmoid` of each logit, or `sparsemixer`.
        groups: Groups of consecutive experts.
        top_groups: Groups from which the experts of a row are selected.
        group_score: Score of a group: `max`, its best expert, or `top2`, the sum of its best two.
        scale: Factor on the routing weights.
        margin: Relative distance of the logits that compete with `sparsemixer`.
    """

    experts: int
    top_k: int
    normalize: bool
    scoring: str = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    scale: float = 1.0
    margin: float = 0.0

    def check(self, label: str) -> None:
        """Check that a row can be routed in this way.

        Raises:
            FormatError: It cannot.
        """
        size = self.experts // max(self.groups, 1)
        if not 0 < self.top_groups <= self.groups or self.experts % self.groups:
            raise FormatError(
                "the experts cannot be selected from these groups",
                where=label,
                expected=f"groups of equal size, and 1 to {self.groups} of them selected",
                found=f"{self.experts} experts, {self.top_groups} of {self.groups} groups",
            )
        if not 0 < self.top_k <= size * self.top_groups:
            raise FormatError(
                "a row cannot be routed to this number of experts",
                where=label,
                expected=f"1 to {size * self.top_groups}",
                found=self.top_k,
            )


@dataclass(frozen=True, kw_only=True)
class RouterTopK(Record):
    """Parameters of router_topk.wgsl.

    Attributes:
        biased: Whether a bias is added to the scores by which experts are selected.
        scaled: Whether the routing weights are multiplied by a factor of each expert.
        group_score: See `RouterSpec`; empty if experts are not grouped.
        groups: None if experts are not grouped.
        top_groups: None if experts are not grouped.
        margin: None except for `sparsemixer`.
    """

    shader = "experts/router_topk"
    trusted = True

    scoring: str = choice()
    normalize: bool = choice()
    biased: bool = choice()
    scaled: bool = choice()
    group_score: str = choice()
    subgroups: bool = choice()
    experts: int
    top_k: int
    groups: int | None
    top_groups: int | None
    scale: float
    margin: float | None = None


def router_topk(
    ctx: OpContext,
    logits: BufferSlice,
    routes: BufferSlice,
    spec: RouterSpec,
    *,
    selection_bias: BufferSlice | None = None,
    expert_scale: BufferSlice | None = None,
    label: str,
) -> list[Phase]:
    """Select the experts of each row and compute their routing weights.

    Args:
        ctx: Lowering context.
        logits: f32 [rows, experts].
        routes: (u32 expert, f32 routing weight) [rows, top_k], the result, in falling order of the
            scores by which experts are selected; ties go to the lower index.
        spec: How experts are selected and weighted.
        selection_bias: f32 [experts], added to the scores by which experts are selected.
        expert_scale: f32 [experts], factors on the routing weights of each expert.
        label: Name of the op, for messages and profiles.

    Raises:
        FormatError: The numbers of experts and groups do not fit, or a buffer is too small.
    """
    spec.check(label)
    need_floats(f"{label}: logits", logits, ctx.max_rows * spec.experts)
    need_routes(ctx, Routed(routes, spec.experts, spec.top_k), label)
    buffers = {"logits": logits, "routes": routes}
    if selection_bias is not None:
        need_floats(f"{label}: selection bias", selection_bias, spec.experts)
        buffers["selection_bias"] = selection_bias
    if expert_scale is not None:
        need_floats(f"{label}: expert scale", expert_scale, spec.experts)
        buffers["expert_scale"] = expert_scale
    is_grouped = spec.top_groups < spec.groups
    record = RouterTopK(
        threads=power_of_two(spec.experts, 32, 256),
        scoring=spec.scoring,
        normalize=spec.normalize,
        biased=selection_bias is not None,
        scaled=expert_scale is not None,
        group_score=spec.group_score if is_grouped else "",
        subgroups=ctx.subgroups,
        experts=spec.experts,
        top_k=spec.top_k,
        groups=spec.groups if is_grouped else None,
        top_groups=spec.top_groups if is_grouped else None,
        scale=spec.scale,
        margin=spec.margin if spec.scoring == "sparsemixer" else None,
    )
    return [Phase(record, buffers, Work(rows=1), label)]
