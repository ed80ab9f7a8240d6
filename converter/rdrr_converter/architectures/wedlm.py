"""WeDLM: Qwen 2.5 or 3 trained on to fill masks in place; which of the two, its tensors say."""

from __future__ import annotations

from rdrr_converter.architectures import _config as read
from rdrr_converter.architectures._tensors import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    FINAL_NORM,
    HEAD,
    QUERY_KEY_NORMS,
    TWO_NORMS,
    attention_biases,
    optional,
)
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.layers import window_above

WEDLM = ArchitectureRule(
    name="wedlm",
    classes=("WeDLMForCausalLM", "WeDLMModel"),
    defaults={
        "hidden_act": "silu",
        "mask_token_id": 151665,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "sliding_window": read.window("sliding_window"),
    },
    normalization={
        "rms_norm_eps": read.number("rms_norm_eps"),
        "post_attention_norm": True,
    },
    ffn={"activation": read.activation("hidden_act")},
    output={},
    layer_types=window_above("max_window_layers"),
    mask_token="mask_token_id",
    tensors=(
        EMBEDDING,
        *TWO_NORMS,
        *ATTENTION,
        *attention_biases(q=False, k=False, v=False, o=False),
        *optional(*QUERY_KEY_NORMS),
        *FEED_FORWARD,
        FINAL_NORM,
        HEAD,
    ),
)
