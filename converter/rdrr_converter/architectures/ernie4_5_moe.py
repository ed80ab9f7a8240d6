"""Ernie 4.5 with experts, which are selected by their probabilities plus a bias."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import SHARED_EXPERTS, shared_width
from rdrr_converter.architectures._rope import interleaved, read_rope
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import all_but

USE_BIAS = read.flag("use_bias")
SMALLEST_SUM = 1e-9
SELECTION_BIAS = TensorRule(
    "model.layers.{layer}.mlp.moe_statics.e_score_correction_bias",
    "router",
    ("one", "experts"),
    aliases=("model.layers.{layer}.mlp.gate.moe_statics.e_score_correction_bias",),
)


def sparse_layers(config: Config) -> tuple[int, ...]:
    """Rule: every n-th layer has experts, from a first to a last one (-1 for the last of all)."""
    last = config.get("moe_layer_end_index")
    first, step = config.get("moe_layer_start_index"), config.integer("moe_layer_interval")
    for key, layer in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
        if type(layer) is not int or layer < -1:
            raise config.fault(key, "the index of a layer", layer)
    end = config.layers if last == -1 else min(last + 1, config.layers)
    # Both ends are included, and a multiple of the step is one of the number counted from 1.
    return tuple(layer for layer in range(end) if layer >= first and (layer + 1) % step == 0)


def always_normalized(config: Config) -> bool:
    """Rule: routing weights are divided by their sum, which has a lower bound.

    Raises:
        SourceError: The bound is so large that it could change a weight.
    """
    if config.number("moe_norm_min") > SMALLEST_SUM:
        raise config.fault("moe_norm_min", f"at most {SMALLEST_SUM}", config.get("moe_norm_min"))
    return True


ERNIE4_5_MOE = ArchitectureRule(
    name="ernie4_5_moe",
    classes=("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeModel"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_norm_min": 1e-12,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "num_attention_heads": 20,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "use_bias": False,
        "vocab_size": 103424,
    },
    experts={
        "num_experts": read.integer("moe_num_experts", "num_experts"),
        "num_experts_per_token": read.integer("moe_k", "num_experts_per_tok"),
        "expert_format": "mixtral",
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "shared_expert_intermediate_size": shared_width("moe_num_shared_experts"),
        "normalize_weights": always_normalized,
    },
    rope=interleaved(read_rope),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    other_parts=(r"model\.mtp_.*",),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(USE_BIAS),
        *tensors.in_layers(
            all_but(sparse_layers), *tensors.FEED_FORWARD, *tensors.feed_forward_biases(USE_BIAS)
        ),
        *tensors.in_layers(
            sparse_layers,
            tensors.router("mlp.gate"),
            SELECTION_BIAS,
            *tensors.QWEN_EXPERTS,
            *SHARED_EXPERTS,
        ),
    ),
)
