"""WeDLM: Qwen 2.5 or 3 trained further to fill in masked tokens.

Two flags say which of the two it is.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_above

WEDLM = ArchitectureRule(
    name="wedlm",
    classes=("WeDLMForCausalLM", "WeDLMModel"),
    defaults={
        "attention_bias": True,
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
    attention=WINDOWED_ATTENTION,
    layer_types=window_above,
    mask_token="mask_token_id",
    stated_by_tensors=("qk_norm",),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=False),
        *tensors.required_if(read.flag("qk_norm"), *tensors.QUERY_KEY_NORMS),
        *tensors.FEED_FORWARD,
    ),
)
