"""IQuest-Coder: Llama with other defaults."""

from __future__ import annotations

from dataclasses import replace

from rdrr_converter.architectures.llama import LLAMA

IQUESTCODER = replace(
    LLAMA,
    name="iquestcoder",
    classes=("IQuestCoderForCausalLM", "IQuestCoderModel", "LlamaForCausalLM"),
    defaults={
        **LLAMA.defaults,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "max_position_embeddings": 131072,
        "num_attention_heads": 40,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "vocab_size": 76800,
    },
)
