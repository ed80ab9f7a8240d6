"""OLMo 2: norms on the output of each branch only, and on the queries and the keys as a whole."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule

OLMO2 = ArchitectureRule(
    name="olmo2",
    classes=("Olmo2ForCausalLM", "Olmo2Model"),
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
        "vocab_size": 50304,
    },
    attention={"query_pre_attn_scalar": read.head_dim, "query_key_norm_spans_heads": True},
    normalization={**RMS_NORMS, "post_feedforward_norm": True},
    tensors=tensors.of_model(
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS_OF_ALL_HEADS,
        *tensors.POST_NORMS,
        *tensors.FEED_FORWARD,
    ),
)
