"""Qwen 3 with experts in all layers or in some of them."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import (
    layers_with_experts,
    layers_without_experts,
    window_if_used,
)

QWEN3_MOE = ArchitectureRule(
    name="qwen3_moe",
    classes=("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    defaults={
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    attention=WINDOWED_ATTENTION,
    experts={
        **MIXTURE_KEYS,
        "expert_intermediate_size": read.integer("moe_intermediate_size"),
        "normalize_weights": read.flag("norm_topk_prob"),
    },
    layer_types=window_if_used,
    stated_by_tensors=("use_qk_norm",),
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *tensors.in_layers(layers_without_experts, *tensors.FEED_FORWARD),
        *tensors.in_layers(layers_with_experts, tensors.router("mlp.gate"), *tensors.QWEN_EXPERTS),
    ),
)
