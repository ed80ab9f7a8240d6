"""InternLM 3, which computes what Llama does."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.llama import LLAMA

INTERNLM3 = replace(
    LLAMA,
    name="internlm3",
    # transformers computes it with Llama's class and saves that name beside this `model_type`.
    classes=("InternLM3ForCausalLM", "InternLM3Model", "LlamaForCausalLM"),
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 10240,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128512,
    },
)
