"""OLMoE: experts in every layer, and norms on the queries and the keys as a whole."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._mixtures import MIXTURE_KEYS
from rdrr_converter.architectures.base import ArchitectureRule

OLMOE = ArchitectureRule(
    name="olmoe",
    classes=("OlmoeForCausalLM", "OlmoeModel"),
    defaults={
        "clip_qkv": None,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 50304,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "query_key_norm_spans_heads": True,
        "clip_qkv": read.optional_number("clip_qkv"),
    },
    experts={
        **MIXTURE_KEYS,
        "num_experts": read.integer("num_experts", "num_local_experts"),
        "expert_intermediate_size": read.integer("intermediate_size"),
        "normalize_weights": read.flag("norm_topk_prob"),
    },
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS_OF_ALL_HEADS,
        tensors.router("mlp.gate"),
        *tensors.QWEN_EXPERTS,
    ),
)
