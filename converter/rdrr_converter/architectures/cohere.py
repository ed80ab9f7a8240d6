"""Command R and Aya: LayerNorm without a bias, parallel branches, rope of neighbouring pairs."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_interleaved_rope
from rdrr_converter.architectures.base import ArchitectureRule

QK_NORM = read.flag("use_qk_norm")

COHERE = ArchitectureRule(
    name="cohere",
    classes=("CohereForCausalLM", "CohereModel"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "logit_scale": 0.0625,
        "max_position_embeddings": 8192,
        "num_attention_heads": 64,
        "num_hidden_layers": 40,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_per_head": QK_NORM},
    normalization={"rms_norm_eps": read.number("rms_norm_eps"), "layer_norm": True},
    output={"logit_input_scale": read.number("logit_scale")},
    rope=read_interleaved_rope,
    parallel=True,
    keys={"rms_norm_eps": "layer_norm_eps"},
    tensors=tensors.of_model(
        tensors.norm("input_layernorm"),
        *tensors.required_if(QK_NORM, *tensors.QUERY_KEY_NORMS_PER_HEAD),
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
    ),
)
