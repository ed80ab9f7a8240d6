"""Command R7B and Command A: Cohere with a sliding window in most layers, and rope only there."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_interleaved_rope
from rdrr_converter.architectures.base import ArchitectureRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL, every_nth_full


def _rope(config: Config) -> dict[str, object]:
    types = every_nth_full(config)
    plain = tuple(layer for layer, kind in enumerate(types) if kind == FULL)
    return {**read_interleaved_rope(config), "unrotated_layers": plain or None}


COHERE2 = ArchitectureRule(
    name="cohere2",
    classes=("Cohere2ForCausalLM", "Cohere2Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "logit_scale": 0.0625,
        "max_position_embeddings": 8192,
        "num_attention_heads": 64,
        "num_hidden_layers": 40,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
    attention={
        "query_pre_attn_scalar": read.head_dim,
        "sliding_window": lambda config: config.integer("sliding_window"),
    },
    normalization={"rms_norm_eps": read.number("rms_norm_eps"), "layer_norm": True},
    output={"logit_input_scale": read.number("logit_scale")},
    rope=_rope,
    layer_types=every_nth_full,
    parallel=True,
    keys={"rms_norm_eps": "layer_norm_eps"},
    tensors=tensors.of_model(
        tensors.norm("input_layernorm"),
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
    ),
)
