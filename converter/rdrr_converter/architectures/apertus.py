"""Apertus: Llama without gates, with the activation xIELU and norms on queries and keys."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule, TensorRule


def _parameter(name: str, *shape: str) -> TensorRule:
    return TensorRule(f"model.layers.{{layer}}.mlp.act_fn.{name}", "bias", shape)


APERTUS = ArchitectureRule(
    name="apertus",
    classes=("ApertusForCausalLM", "ApertusModel"),
    defaults={
        "hidden_act": "xielu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 65536,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12000000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "rope_theta": 12000000.0,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
    normalization={"rms_norm_eps": read.number("rms_norm_eps")},
    ffn={"activation": read.activation("hidden_act"), "gated_activation": False},
    stated_by_tensors=("qk_norm",),
    tensors=tensors.of_model(
        tensors.norm("attention_layernorm"),
        tensors.norm("feedforward_layernorm"),
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS,
        *tensors.UNGATED_FEED_FORWARD,
        _parameter("alpha_p", "one"),
        _parameter("alpha_n", "one"),
        _parameter("beta"),
        _parameter("eps"),
    ),
)
