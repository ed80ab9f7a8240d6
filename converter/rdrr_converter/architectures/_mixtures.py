"""Rules that architectures with mixtures like those of DeepSeek share.

Their first layers are dense. In the others, some experts are shared by all tokens, and a bias that
training keeps in balance takes part in the selection of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_but

SHARED_EXPERTS = (
    tensors.projection("mlp.shared_experts.gate_proj", "shared", "hidden"),
    tensors.projection("mlp.shared_experts.up_proj", "shared", "hidden"),
    tensors.projection("mlp.shared_experts.down_proj", "hidden", "shared"),
)
SELECTION_BIAS = TensorRule(
    "model.layers.{layer}.mlp.gate.e_score_correction_bias", "router", ("experts",)
)


def layers_from(key: str) -> Callable[[Config], tuple[int, ...]]:
    """Rule: all but the first layers, whose number is the value of a key, have experts."""
    return lambda config: tuple(range(config.layer_count(key), config.layers))


sparse_layers = layers_from("first_k_dense_replace")


def stated_sparse_layers(config: Config) -> tuple[int, ...] | None:
    """Return the layers that `mlp_layer_types` calls sparse; None if it is not stated.

    Raises:
        SourceError: It is no list with the type of each layer.
    """
    types = config.get("mlp_layer_types")
    if types is None:
        return None
    known = isinstance(types, list) and set(map(str, types)) <= {"dense", "sparse"}
    if not known or len(types) < config.layers:
        raise config.fault("mlp_layer_types", f"{config.layers} of dense or sparse", types)
    return tuple(layer for layer in range(config.layers) if types[layer] == "sparse")


def feed_forwards(
    *more: TensorRule, sparse: Callable[[Config], tuple[int, ...]] = sparse_layers
) -> tuple[TensorRule, ...]:
    """Return the rules for dense layers and for layers with experts, which also have `more`."""
    return (
        *tensors.in_layers(all_but(sparse), *tensors.FEED_FORWARD),
        *tensors.in_layers(
            sparse, tensors.router("mlp.gate"), *more, *tensors.QWEN_EXPERTS, *SHARED_EXPERTS
        ),
    )


def shared_width(experts: str) -> Callable[[Config], int]:
    """Rule: the joint width of the shared experts, whose number is the value of a key."""
    return lambda config: config.integer("moe_intermediate_size") * config.integer(experts)


def stated_as(key: str, value: object, *accepted: str) -> Callable[[Config], object]:
    """Rule: a constant, where the configuration may name the method that it belongs to.

    Args:
        key: Key that may name the method.
        value: The constant.
        accepted: Names of the method.
    """

    def rule(config: Config) -> object:
        stated = config.get(key)
        if stated is not None and stated not in accepted:
            raise config.fault(key, " or ".join(accepted), stated)
        return value

    return rule


def optional_groups(key: str) -> Callable[[Config], int | None]:
    """Rule: a number of groups; None if all experts are in one group."""

    def rule(config: Config) -> int | None:
        groups = config.get("n_group")
        if groups in (None, 1):
            config.get(key)
            return None
        return config.integer(key)

    return rule


MIXTURE_KEYS: Mapping[str, object] = {
    "num_experts": read.integer("num_local_experts", "num_experts"),
    "num_experts_per_token": read.integer("num_experts_per_tok"),
    "expert_format": "mixtral",
}
"""Fields of `moeConfig` that most mixtures have in common."""

SIGMOID_EXPERTS: Mapping[str, object] = {
    **MIXTURE_KEYS,
    "num_experts": read.integer("n_routed_experts", "num_local_experts", "num_experts"),
    "expert_intermediate_size": read.integer("moe_intermediate_size"),
    "shared_expert_intermediate_size": shared_width("n_shared_experts"),
    "normalize_weights": read.flag("norm_topk_prob"),
    "score_function": stated_as("scoring_func", "sigmoid", "sigmoid", "noaux_tc"),
    "expert_groups": optional_groups("n_group"),
    "expert_groups_per_token": optional_groups("topk_group"),
    "expert_group_score": stated_as("topk_method", "top2", "noaux_tc"),
    "routed_scaling_factor": read.number("routed_scaling_factor"),
}
"""Fields of `moeConfig` where the scores are sigmoids (DeepSeek V3 and its successors)."""


def never_normalized(config: Config) -> bool:
    """Rule: routing weights are not normalized.

    Raises:
        SourceError: The configuration says that they are, on which readers differ: DeepSeek's own
            code then does not scale them, and transformers does not read the key.
    """
    if config.flag("norm_topk_prob"):
        raise config.fault("norm_topk_prob", "false", found=True)
    return False


def limited_groups(key: str) -> Callable[[Config], int | None]:
    """Rule: a number of groups, where `topk_method` says that experts are grouped (DeepSeek V2)."""
    grouped = optional_groups(key)

    def rule(config: Config) -> int | None:
        method, groups = config.get("topk_method"), grouped(config)
        if method not in ("greedy", "group_limited_greedy"):
            raise config.fault("topk_method", "greedy or group_limited_greedy", method)
        return groups if method == "group_limited_greedy" else None

    return rule


SOFTMAX_EXPERTS: Mapping[str, object] = {
    **SIGMOID_EXPERTS,
    "normalize_weights": never_normalized,
    "score_function": stated_as("scoring_func", None, "softmax"),
    "expert_groups": limited_groups("n_group"),
    "expert_groups_per_token": limited_groups("topk_group"),
    "expert_group_score": None,
}
"""Fields of `moeConfig` where the scores are probabilities (DeepSeek V2)."""
