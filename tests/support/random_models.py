"""Random models of true proportions, whose next token is clear enough to compare runtimes by ids.

The models of `support.tiny_models` have heads and vocabularies that other runtimes' kernels
need not support, and nearly equal logits.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "gemma3_text": {},
    "qwen2": {},
    "llama": {"attention_bias": True},
}
"""transformers' names of the configurations, and the options of each."""

LATER: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    "gpt_oss": {
        "intermediate_size": 256,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
}
"""A hybrid and two mixtures, which not all of those runtimes know."""

_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8192,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.08,
}


def save_model(
    name: str, folder: Path, *, tokenizer_from: Path, seed: int = 7, **sizes: Any
) -> Path:
    """Write a random checkpoint in float16, with the tokenizer of another one.

    Args:
        name: One of `MODELS` or `LATER`.
        folder: Folder to create.
        tokenizer_from: Checkpoint with the tokenizer.
        seed: Random seed of the weights.
        sizes: Keys of the configuration that replace the usual ones.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(name, **_SIZES | (MODELS | LATER)[name] | sizes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, so that a test sees one that is forgotten
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.half().save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_from / file, folder)
    return folder
