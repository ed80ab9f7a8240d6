"""Translate `moeConfig` into the router of a layer with experts."""

from __future__ import annotations

from rdrr_manifests.graph.names import SELECTION_BIASES, TensorNames
from rdrr_manifests.graph.ops import Router, WeightKind, WeightUse
from rdrr_manifests.models.experts import MoeConfig

SPARSEMIXER = "sparsemixer"
SCORINGS = (None, "softmax", "sigmoid", SPARSEMIXER)
GROUP_SCORES = (None, "max", "top2")


def router_of(
    moe: MoeConfig, names: TensorNames, layer: int, x: str, out: str, weight: WeightUse
) -> Router:
    """Return the router of a layer.

    Args:
        moe: Settings of all layers with experts.
        names: Names of the tensors, which say which biases there are.
        layer: Index of the layer.
        x: Value that is routed.
        out: Name of the router's value.
        weight: The router's matrix.
    """
    biases = (names.layer(layer, name) for name in SELECTION_BIASES)
    added = next((name for name in biases if name in names), None)
    if moe.score_function == SPARSEMIXER:
        added = None
    bias = f"{weight.name.removesuffix('.weight')}.bias"
    factors = names.layer(layer, "router.per_expert_scale")
    groups = moe.expert_groups or 1
    return Router(
        x,
        out,
        weight,
        moe.num_experts_per_token,
        moe.normalize_weights,
        None if bias not in names else _vector(bias, moe.num_experts),
        scoring=moe.score_function or "softmax",
        selection_bias=None if added is None else _vector(added, moe.num_experts),
        groups=groups,
        top_groups=moe.expert_groups_per_token or groups,
        group_score=moe.expert_group_score or "max",
        scale=1.0 if moe.routed_scaling_factor is None else moe.routed_scaling_factor,
        expert_scale=_vector(factors, moe.num_experts) if factors in names else None,
        margin=moe.sparsemixer_margin or 0.0,
    )


def has_known_router(moe: MoeConfig) -> bool:
    """Return whether a router can compute what the settings ask for."""
    groups = moe.expert_groups or 1
    selected = moe.expert_groups_per_token or groups
    mixes = moe.score_function == SPARSEMIXER
    if mixes != (moe.sparsemixer_margin is not None) or (mixes and groups > 1):
        return False
    return (
        moe.score_function in SCORINGS
        and not (mixes and moe.normalize_weights)
        and moe.expert_group_score in GROUP_SCORES
        and moe.num_experts % groups == 0
        and selected <= groups
        and moe.num_experts_per_token <= moe.num_experts // groups * selected
    )


def _vector(name: str, experts: int) -> WeightUse:
    """Return the use of a bias, which Ernie's checkpoints store as a matrix of one row."""
    shape = (1, experts) if "moe_statics" in name else (experts,)
    return WeightUse(name, shape, WeightKind.VECTOR)
