"""Phi-3, Phi-3.5 mini and Phi-4: Llama with stacked projections, LongRoPE and partial rotation."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import read_partial_rope
from rdrr_converter.architectures.base import WINDOWED_ATTENTION, ArchitectureRule
from rdrr_converter.architectures.layers import window_everywhere

PHI3 = ArchitectureRule(
    name="phi3",
    classes=("Phi3ForCausalLM", "Phi3Model"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    attention=WINDOWED_ATTENTION,
    rope=read_partial_rope,
    layer_types=window_everywhere,
    stacks=(tensors.STACKED_ATTENTION, tensors.STACKED_GATE_UP),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.FEED_FORWARD,
    ),
)
