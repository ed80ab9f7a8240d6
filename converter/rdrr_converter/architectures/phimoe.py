"""Phi-3.5 MoE: LayerNorm, biases, two experts of which each is weighed against its near rivals.

transformers 5 keeps the short factors of longrope in long contexts too, unlike Microsoft's code,
which this file follows.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_rope_with_attention_factors
from rdrr_converter.architectures.base import RMS_NORMS, WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import window_everywhere

EXPERTS = tensors.expert_projections("block_sparse_moe.experts", "w1", "w3", "w2")


def margin(config: Config) -> float:
    """Rule: logits compete whose relative distance is at most twice the noise in training."""
    return 2.0 * config.number("router_jitter_noise")


def two_experts(config: Config) -> int:
    """Rule: the sparsemixer chooses two experts, neither more nor fewer."""
    count = config.integer("num_experts_per_tok")
    if count != 2:
        raise config.fault("num_experts_per_tok", "2, as the sparsemixer has", count)
    return count


PHIMOE = ArchitectureRule(
    name="phimoe",
    classes=("PhimoeForCausalLM", "PhimoeModel", "PhiMoEForCausalLM", "PhiMoEModel"),
    defaults={
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 6400,
        "lm_head_bias": False,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "router_jitter_noise": 0.01,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    attention=WINDOWED_ATTENTION,
    normalization={**RMS_NORMS, "layer_norm": True},
    experts={
        "num_experts": read.integer("num_local_experts"),
        "num_experts_per_token": two_experts,
        "expert_format": "mixtral",
        "expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": False,
        "score_function": "sparsemixer",
        "sparsemixer_margin": margin,
    },
    rope=read_rope_with_attention_factors,
    layer_types=window_everywhere,
    stacks=tensors.stacked_experts(*EXPERTS),
    tensors=(
        tensors.EMBEDDING,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        tensors.router("block_sparse_moe.gate", aliases=("mlp.router",)),
        *EXPERTS,
        *tensors.BIASED_END,
        *tensors.required_if(read.flag("lm_head_bias"), tensors.HEAD_BIAS),
    ),
)
