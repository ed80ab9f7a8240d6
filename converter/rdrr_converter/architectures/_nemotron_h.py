"""The layers of Nemotron-H and their feed-forwards, dense or with experts without gates."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS, SELECTION_BIAS, optional_groups
from rdrr_converter.architectures._state_space import FEED_FORWARD, STATE_SPACE, of_type
from rdrr_converter.architectures.base import Block, StackRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL
from rdrr_converter.architectures.tensors import bias, projection, router

EXPERTS = "experts"
"""The type of a layer with experts here; manifests call it a feed-forward."""
TYPES = {
    "M": STATE_SPACE,
    "mamba": STATE_SPACE,
    "linear_attention": STATE_SPACE,
    "*": FULL,
    "attention": FULL,
    FULL: FULL,
    "-": FEED_FORWARD,
    "mlp": FEED_FORWARD,
    "E": EXPERTS,
    "moe": EXPERTS,
}
"""Types of layers by their letters in patterns, and by their older and newer names in lists."""

_OF_EXPERTS = (
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
)
"""Keys that only describe layers with experts."""

_UNUSED = (
    "expand",  # the width is that of the heads
    "mtp_hybrid_override_pattern",  # further tokens are not predicted
    "mtp_layers_block_type",
    "num_nextn_predict_layers",
    "moe_shared_expert_overlap",  # when the shared expert is computed
    "n_shared_experts",  # there is one, whatever the number, whose width has its own key
)


def single_branches(config: Config) -> tuple[str, ...]:
    """Rule: the types of the layers in manifests."""
    kinds = kinds_of_layers(config)
    unused = _UNUSED if EXPERTS in kinds else (*_OF_EXPERTS, *_UNUSED)
    for key in unused:
        config.get(key)
    return tuple(FEED_FORWARD if kind == EXPERTS else kind for kind in kinds)


def kinds_of_layers(config: Config) -> tuple[str, ...]:
    """Return the layers of `layers_block_type`, else of `hybrid_override_pattern`.

    Raises:
        SourceError: Both are absent, one has a type that is not known, or they differ.
    """
    by_key = {}
    for key in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        stated = config.get(key)
        if stated is None:
            continue
        unknown = [kind for kind in stated if kind not in TYPES]
        if not stated or unknown:
            raise config.fault(key, f"layers of the types {', '.join(TYPES)}", unknown or stated)
        by_key[key] = tuple(TYPES[kind] for kind in stated)
    if len(set(by_key.values())) != 1:
        expected = "one list of layers" if by_key else "layers_block_type"
        raise config.fault("hybrid_override_pattern", expected, list(by_key) or None)
    return next(iter(by_key.values()))


def layer_count(config: Config) -> int:
    """Default: the number of layers is that of the types."""
    return len(kinds_of_layers(config))


def has_experts(config: Config) -> bool:
    """Rule: whether any layer has experts."""
    return EXPERTS in kinds_of_layers(config)


def expert_size(config: Config) -> int:
    """Rule: the width of what an expert reads and writes, that of a latent if there is one."""
    return latent_size(config) or config.integer("hidden_size")


def layers_with_latents(config: Config) -> Collection[int]:
    """Rule: the layers whose experts read a latent."""
    return layers_of(EXPERTS)(config) if latent_size(config) else ()


def layers_of(kind: str) -> Callable[[Config], Collection[int]]:
    """Return the rule for the layers of one type."""
    return of_type(kinds_of_layers, kind)


def head_width(config: Config) -> int:
    """Default: the width of a head has another key in the first models."""
    width: int = config.get("attention_head_dim") or 128
    return width


latent_size = read.optional_integer("moe_latent_size")
MOE: Block = {
    **MIXTURE_KEYS,
    "num_experts": read.integer("n_routed_experts"),
    "expert_intermediate_size": read.integer("moe_intermediate_size"),
    "shared_expert_intermediate_size": read.integer("moe_shared_expert_intermediate_size"),
    "expert_latent_size": latent_size,
    "normalize_weights": read.flag("norm_topk_prob"),
    "score_function": "sigmoid",
    "expert_groups": optional_groups("n_group"),
    "expert_groups_per_token": optional_groups("topk_group"),
    "expert_group_score": "top2",
    "routed_scaling_factor": read.number("routed_scaling_factor"),
}
"""Fields of `moeConfig`."""

MLP_BIAS = read.flag("mlp_bias")
_EXPERT = "model.layers.{layer}.mlp.experts.{expert}"
ROUTED = (
    TensorRule(f"{_EXPERT}.up_proj.weight", "expert", ("width", "routed")),
    TensorRule(f"{_EXPERT}.down_proj.weight", "expert", ("routed", "width")),
)
EXPERT_STACKS = tuple(
    StackRule(name, (row.name,))
    for row in ROUTED
    for whole in [row.name.replace(".{expert}", "")]
    for name in (whole, whole.replace(".mlp.", ".mixer.").removesuffix(".weight"))
)
"""The experts of a layer in one tensor, in a GGUF and in models of transformers 5."""

MIXTURE = (
    router("mlp.gate"),
    SELECTION_BIAS,
    *ROUTED,
    projection("mlp.shared_experts.up_proj", "shared", "hidden"),
    projection("mlp.shared_experts.down_proj", "hidden", "shared"),
    bias("mlp.shared_experts.up_proj", "shared", MLP_BIAS),
    bias("mlp.shared_experts.down_proj", "hidden", MLP_BIAS),
)
LATENTS = (
    projection("mlp.fc1_latent_proj", "routed", "hidden"),
    projection("mlp.fc2_latent_proj", "hidden", "routed"),
    bias("mlp.fc1_latent_proj", "routed", MLP_BIAS),
    bias("mlp.fc2_latent_proj", "hidden", MLP_BIAS),
)
FEED_FORWARD_PARTS = (
    "up_proj",
    "down_proj",
    "gate",
    "shared_experts.up_proj",
    "shared_experts.down_proj",
    "experts.{expert}.up_proj",
    "experts.{expert}.down_proj",
    "fc1_latent_proj",
    "fc2_latent_proj",
)
"""Modules of feed-forwards, which checkpoints store in `mixer`."""
