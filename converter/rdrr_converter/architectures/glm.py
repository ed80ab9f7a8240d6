"""GLM-4 9B of 2024: biases on queries, keys and values, rope on neighbours in half of each head."""

from __future__ import annotations

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures._rope import interleaved, read_partial_rope
from rdrr_converter.architectures.base import ArchitectureRule

GLM = ArchitectureRule(
    name="glm",
    classes=("GlmForCausalLM", "GlmModel"),
    defaults={
        "attention_bias": True,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 151552,
    },
    rope=interleaved(read_partial_rope),
    stacks=(tensors.STACKED_GATE_UP,),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(output=False),
        *tensors.FEED_FORWARD,
    ),
)
