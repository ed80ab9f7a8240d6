"""OLMo 1: Llama with LayerNorm without weights and biases, and perhaps limited projections."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule

OLMO = ArchitectureRule(
    name="olmo",
    classes=("OlmoForCausalLM", "OlmoModel"),
    defaults={
        "clip_qkv": None,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 50304,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "clip_qkv": read.optional_number("clip_qkv"),
    },
    normalization={"rms_norm_eps": 1e-5, "layer_norm": True, "norm_weights": False},
    tensors=(
        tensors.EMBEDDING,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
        tensors.HEAD,
    ),
)
