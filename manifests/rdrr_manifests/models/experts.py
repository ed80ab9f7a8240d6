"""Mixture of experts: how many experts a layer has and how tokens are routed to them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rdrr_manifests.models.base import WRITTEN_IF_SET, Block


class MoeConfig(Block):
    """`moeConfig`: the settings of every layer that has experts; the tensors decide which do.

    The rule `experts` checks the counts, so that a wrong count is reported as such and not as a
    missing field.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_token: Experts that each token uses.
        expert_format: `mixtral` if every expert has separate matrices; other writers have packed
            forms.
        expert_intermediate_size: Width of an expert's inner layer; None for the
            `intermediateSize` of `architecture`.
        shared_expert_intermediate_size: Width of the expert that every token uses; None if there
            is none. Written by rdrr only.
        expert_latent_size: Width of the latent that the routed experts read and write, between two
            projections that all of them share; None if they read and write the hidden state.
            Written by rdrr only.
        normalize_weights: Whether the routing weights of a token's experts are divided by their
            sum. Written by rdrr only.
        score_function: Scores of the experts: `softmax` over all of them, `sigmoid` of each logit,
            or `sparsemixer`, a softmax over those whose logits are near; None for `softmax`.
            Written by rdrr only.
        sparsemixer_margin: Distance of near logits, relative to their size. Written by rdrr only.
        expert_groups: Groups of consecutive experts; None for one group. Written by rdrr only.
        expert_groups_per_token: Groups from which the experts of a token are selected; None for
            all groups. Written by rdrr only.
        expert_group_score: What the groups are selected by: `max`, the score of the best expert,
            or `top2`, the sum of the best two; None for `max`. Written by rdrr only.
        routed_scaling_factor: Factor on the routing weights; None for 1. Written by rdrr only.
        weights_scale_inputs: Whether routing weights multiply the inputs of experts instead of
            their outputs; None for no. Written by rdrr only.
        expert_tensors: Names of each expert's tensors; the keys are `LAYER_EXPERT`.
        expert_shard_map: Shards that contain each expert's tensors, under the same keys.
        expert_bytes: Bytes of the largest expert.
    """

    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_format: str = "mixtral"
    expert_intermediate_size: int | None = Field(default=None, gt=0)
    shared_expert_intermediate_size: int | None = Field(default=None, gt=0)
    expert_latent_size: Annotated[int | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    normalize_weights: bool = True
    score_function: str | None = None
    sparsemixer_margin: Annotated[float | None, WRITTEN_IF_SET] = Field(default=None, gt=0)
    expert_groups: int | None = Field(default=None, gt=0)
    expert_groups_per_token: int | None = Field(default=None, gt=0)
    expert_group_score: str | None = None
    routed_scaling_factor: float | None = None
    weights_scale_inputs: bool | None = None
    expert_tensors: dict[str, tuple[str, ...]] | None = None
    expert_shard_map: object = None
    expert_bytes: int | None = None
