"""dots.llm1: Qwen 3's attention, and mixtures with sigmoid scores behind dense first layers."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import SELECTION_BIAS, SIGMOID_EXPERTS, feed_forwards
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_from

DOTS1 = ArchitectureRule(
    name="dots1",
    classes=("Dots1ForCausalLM", "Dots1Model"),
    defaults={
        "attention_bias": False,
        "first_k_dense_replace": 0,
        "hidden_act": "silu",
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "max_position_embeddings": 2048,
        "max_window_layers": 62,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": None,
        "n_shared_experts": None,
        "norm_topk_prob": False,
        "num_attention_heads": 32,
        "num_experts_per_tok": None,
        "num_hidden_layers": 62,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "routed_scaling_factor": 1.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "vocab_size": 152064,
    },
    attention=WINDOWED_ATTENTION,
    experts=SIGMOID_EXPERTS,
    layer_types=window_from,
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *feed_forwards(SELECTION_BIAS),
    ),
)
