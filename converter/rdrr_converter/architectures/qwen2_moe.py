"""Qwen 1.5 and 2 with experts, plus a gated shared expert that every token uses."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import (
    alternating_below,
    layers_with_experts,
    layers_without_experts,
)

QKV_BIAS = read.flag("qkv_bias")

QWEN2_MOE = ArchitectureRule(
    name="qwen2_moe",
    classes=("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    defaults={
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    attention=WINDOWED_ATTENTION,
    experts={
        **MIXTURE_KEYS,
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "shared_expert_intermediate_size": read.integer("shared_expert_intermediate_size"),
        "normalize_weights": read.flag("norm_topk_prob"),
    },
    layer_types=alternating_below,
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(QKV_BIAS, output=False),
        *tensors.in_layers(layers_without_experts, *tensors.FEED_FORWARD),
        *tensors.in_layers(
            layers_with_experts,
            tensors.router("mlp.gate"),
            *tensors.QWEN_EXPERTS,
            *tensors.SHARED_EXPERT,
        ),
    ),
)
