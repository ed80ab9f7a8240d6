"""The first Gemma: Llama with (1 + w) norms, tanh-GELU and scaled embeddings."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule

GEMMA = ArchitectureRule(
    name="gemma",
    classes=("GemmaForCausalLM", "GemmaModel"),
    defaults={
        "head_dim": 256,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "max_position_embeddings": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "causal": read.negated("use_bidirectional_attention"),
    },
    normalization={**RMS_NORMS, "rms_norm_weight_offset": True},
    # Its first configurations say `gelu` although the model was trained with the tanh form.
    ffn={"activation": "gelu"},
    output={"scale_embeddings": True},
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
    ),
)
