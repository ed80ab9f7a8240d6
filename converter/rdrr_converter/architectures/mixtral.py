"""Mixtral: Mistral with experts, of which the router selects the top two for each token."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_everywhere

EXPERTS = tensors.expert_projections("block_sparse_moe.experts", "w1", "w3", "w2")

MIXTRAL = ArchitectureRule(
    name="mixtral",
    classes=("MixtralForCausalLM", "MixtralModel"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    attention=WINDOWED_ATTENTION,
    experts={
        **MIXTURE_KEYS,
        "expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": True,
    },
    layer_types=window_everywhere,
    stacks=tensors.stacked_experts(*EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        tensors.router("block_sparse_moe.gate", aliases=("mlp.gate",)),
        *EXPERTS,
    ),
)
