"""Nemotron 3 and 4, Minitron: LayerNorm with factors 1 + w, and squared ReLU without a gate."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import RMS_NORMS, ArchitectureRule

NEMOTRON = ArchitectureRule(
    name="nemotron",
    classes=("NemotronForCausalLM", "NemotronModel"),
    defaults={
        "hidden_act": "relu2",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "max_position_embeddings": 4096,
        "num_attention_heads": 48,
        "num_hidden_layers": 32,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 256000,
    },
    normalization={**RMS_NORMS, "rms_norm_weight_offset": True, "layer_norm": True},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    rope=read_partial_rope,
    keys={"rms_norm_eps": "norm_eps"},
    tensors=(
        tensors.EMBEDDING,
        *tensors.TWO_BIASED_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(read.flag("mlp_bias")),
        *tensors.BIASED_END,
    ),
)
