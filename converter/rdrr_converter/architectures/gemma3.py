"""Gemma 3, alone or in a multimodal model.

It has four (1 + w) norms per layer; local layers have a sliding window and their own rope base.
"""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_dual_rope
from rdrr_converter.architectures._siglip_vision import gemma_vision
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule
from rdrr_converter.architectures.layers import every_nth_full

GEMMA3 = ArchitectureRule(
    name="gemma3",
    classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"),
    model_types=("gemma3_text",),
    text_type="gemma3_text",
    defaults={
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
    attention={
        "query_pre_attn_scalar": read.number("query_pre_attn_scalar"),
        "causal": read.negated("use_bidirectional_attention"),
        "sliding_window": read.optional_integer("sliding_window"),
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
    rope=read_dual_rope,
    layer_types=every_nth_full,
    tensors=tensors.of_model(
        *tensors.FOUR_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *tensors.FEED_FORWARD,
    ),
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    other_parts=(r"(model\.)?(vision_tower|multi_modal_projector)\..*",),
    tower=gemma_vision("gemma3_vision"),
)
