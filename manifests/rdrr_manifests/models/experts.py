"""Mixture of experts: how many there are and how a token chooses among them."""

from __future__ import annotations

from pydantic import Field

from rdrr_manifests.models.base import ManifestModel


class MoeConfig(ManifestModel):
    """`moeConfig`: the same for every layer that has experts; which layers do, the tensors say.

    Whether the counts make sense is the rule `experts`' business, so that a wrong one is reported
    as that and not as a missing field.

    Attributes:
        num_experts: Experts of a layer.
        num_experts_per_token: Experts that each token uses.
        expert_format: `mixtral` where every expert has matrices of its own; other writers have
            packed forms.
        expert_intermediate_size: Width of an expert's inner layer; `architecture`'s when None.
        shared_expert_intermediate_size: Width of the expert that every token uses (ours); None
            where there is none.
        normalize_weights: The weights of the chosen experts are divided by their sum (ours).
        expert_tensors: Names of an expert's tensors, by `LAYER_EXPERT`.
        expert_shard_map: Shards that hold them, by the same key.
        expert_bytes: Bytes of the largest expert.
    """

    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_format: str = "mixtral"
    expert_intermediate_size: int | None = Field(default=None, gt=0)
    shared_expert_intermediate_size: int | None = Field(default=None, gt=0)
    normalize_weights: bool = True
    expert_tensors: dict[str, tuple[str, ...]] | None = None
    expert_shard_map: object = None
    expert_bytes: int | None = None
