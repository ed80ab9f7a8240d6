"""Arcee's AFM: Llama without gates, with the square of ReLU as the activation."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule

ARCEE = ArchitectureRule(
    name="arcee",
    classes=("ArceeForCausalLM", "ArceeModel"),
    defaults={
        "hidden_act": "relu2",
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.UNGATED_FEED_FORWARD,
        *tensors.ungated_biases(read.flag("mlp_bias")),
    ),
)
