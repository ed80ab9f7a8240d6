"""Dense Granite 3 and 4: Llama with factors on embeddings, scores, branches and logits."""

from __future__ import annotations

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import ArchitectureRule

GRANITE = ArchitectureRule(
    name="granite",
    classes=("GraniteForCausalLM", "GraniteModel"),
    defaults={
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "logits_scaling": 1.0,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "residual_multiplier": 1.0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    # The manifest's scalar divides scores by its square root, whereas Granite states a factor.
    attention={"query_pre_attn_scalar": lambda config: config.number("attention_multiplier") ** -2},
    output={
        "scale_embeddings": True,
        "embedding_scale": read.number("embedding_multiplier"),
        "logit_input_scale": lambda config: 1.0 / config.number("logits_scaling"),
    },
    branch_scale=read.number("residual_multiplier"),
    tensors=tensors.of_model(
        *tensors.TWO_NORMS,
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.FEED_FORWARD,
        *tensors.feed_forward_biases(read.flag("mlp_bias")),
    ),
)
