"""Keys of a `config.json` for mixtures like those of DeepSeek and of Ernie."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rdrr_manifests.graph.names import EXPERT_NAMES
from rdrr_manifests.models import MoeConfig


def further_keys(moe: MoeConfig, names: Collection[str], layers: int) -> dict[str, Any]:
    """Return the keys that these architectures have besides those of Qwen.

    Args:
        moe: The experts.
        names: Canonical names of the tensors.
        layers: Number of layers.
    """
    width, shared = moe.expert_intermediate_size, moe.shared_expert_intermediate_size
    sparse = [layer for layer in range(layers) if _has_experts(layer, names)]
    first = min(sparse, default=layers)
    groups = moe.expert_groups or 1
    count = shared // width if width and shared else None
    return {
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": count,
        "num_shared_experts": count,
        "first_k_dense_replace": first,
        "n_group": groups,
        "topk_group": moe.expert_groups_per_token or groups,
        "topk_method": "greedy" if moe.expert_groups is None else "group_limited_greedy",
        "routed_scaling_factor": (
            1.0 if moe.routed_scaling_factor is None else moe.routed_scaling_factor
        ),
        "num_dense_layers": first,
        "num_nextn_predict_layers": 0,
        "shared_intermediate_size": shared or 0,
        "mlp_layer_types": ["sparse" if layer in sparse else "dense" for layer in range(layers)],
        "moe_topk": moe.num_experts_per_token,
        "moe_k": moe.num_experts_per_token,
        "moe_num_experts": moe.num_experts,
        "moe_num_shared_experts": count,
        "moe_layer_start_index": first,
        "moe_layer_end_index": max(sparse, default=-1),
        "moe_layer_interval": sparse[1] - first if len(sparse) > 1 else 1,
    }


def _has_experts(layer: int, names: Collection[str]) -> bool:
    return any(f"model.layers.{layer}.{experts.router}.weight" in names for experts in EXPERT_NAMES)
