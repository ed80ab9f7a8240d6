"""Gemma 2: Gemma 3 without q/k norms but with logit softcapping.

Every other layer has a sliding window.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule
from rdrr_converter.architectures.layers import alternating

GEMMA2 = ArchitectureRule(
    name="gemma2",
    classes=("Gemma2ForCausalLM", "Gemma2Model"),
    defaults={
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
    attention={
        "query_pre_attn_scalar": read.number("query_pre_attn_scalar"),
        "attn_logit_softcapping": read.optional_number("attn_logit_softcapping"),
        "causal": read.negated("use_bidirectional_attention"),
        "sliding_window": read.window("sliding_window"),
    },
    normalization={
        **RMS_NORMS,
        "rms_norm_weight_offset": True,
        "pre_feedforward_norm": True,
        "post_feedforward_norm": True,
    },
    ffn={"activation": read.activation("hidden_activation", "hidden_act")},
    output={
        "final_logit_softcapping": read.optional_number("final_logit_softcapping"),
        "scale_embeddings": True,
    },
    layer_types=alternating,
    tensors=tensors.of_model(
        *tensors.FOUR_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
    ),
)
