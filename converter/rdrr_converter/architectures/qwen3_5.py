"""The text model of Qwen 3.5 and 3.6: gated attention in every fourth layer, else linear attention.

Linear attention is the gated delta rule, which has a recurrent state.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._qwen_vision import qwen_vision
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule
from rdrr_converter.architectures.hybrid import (
    LINEAR_DEFAULTS,
    LINEAR_SIZES,
    exported,
    gated_attention,
    linear_and_full,
    linear_attention,
    output_gate,
    silu,
)

QWEN3_5 = ArchitectureRule(
    name="qwen3_5",
    classes=(
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5Model",
        "Qwen3_5TextModel",
    ),
    model_types=("qwen3_5_text",),
    text_type="qwen3_5_text",
    defaults={
        **LINEAR_DEFAULTS,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_position_embeddings": 32768,
        "num_attention_heads": 16,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 248320,
    },
    sizes=LINEAR_SIZES,
    attention={"query_pre_attn_scalar": read.head_dim, "attention_output_gate": output_gate},
    normalization={**RMS_NORMS, "rms_norm_weight_offset": True},
    ffn={"activation": silu},
    rope=read_partial_rope,
    exported=exported,
    layer_types=linear_and_full,
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *gated_attention(read.flag("attention_bias")),
        *linear_attention(),
        *tensors.FEED_FORWARD,
    ),
    prefixes=("model.language_model.", "language_model.model.", "language_model.", "model.", ""),
    other_parts=(r"(model\.)?visual\..*", r"mtp\..*"),
    tower=qwen_vision("qwen3_5_vision"),
    has_draft_head=True,
)
