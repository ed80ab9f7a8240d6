"""FlexOlmo: OLMo 2's attention and norms, and OLMoE's experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.olmo2 import OLMO2
from rdrr_converter.architectures.olmoe import OLMOE

FLEX_OLMO = replace(
    OLMO2,
    name="flex_olmo",
    classes=("FlexOlmoForCausalLM", "FlexOlmoModel"),
    defaults={
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_attention_heads": 32,
        "num_experts": 7,
        "num_experts_per_tok": 5,
        "num_hidden_layers": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 100352,
    },
    experts=OLMOE.experts,
    stacks=tensors.stacked_experts(*tensors.QWEN_EXPERTS),
    tensors=tensors.of_model(
        *tensors.ATTENTION,
        *tensors.attention_biases(),
        *tensors.QUERY_KEY_NORMS_OF_ALL_HEADS,
        *tensors.POST_NORMS,
        tensors.router("mlp.gate"),
        *tensors.QWEN_EXPERTS,
    ),
)
