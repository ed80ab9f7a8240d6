"""Hunyuan 0.5B to 7B: norms on queries and keys after rope, whose base is stretched by `alpha`."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_stretched_rope
from rdrr_converter.architectures.base import ArchitectureRule

HUNYUAN_V1_DENSE = ArchitectureRule(
    name="hunyuan_v1_dense",
    classes=("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 290943,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_after_rope": True},
    rope=read_stretched_rope,
    stated_by_tensors=("use_qk_norm",),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        tensors.norm("self_attn.query_layernorm", "head"),
        tensors.norm("self_attn.key_layernorm", "head"),
        *tensors.FEED_FORWARD,
    ),
)
