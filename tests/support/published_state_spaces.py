"""Configurations of models with state spaces, as they are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PUBLISHED_STATE_SPACES: Mapping[str, dict[str, Any]] = {
    "Mamba-Codestral-7B": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "bos_token_id": 0,
        "chunk_size": 256,
        "conv_kernel": 4,
        "eos_token_id": 0,
        "expand": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.1,
        "intermediate_size": 8192,
        "layer_norm_epsilon": 1e-05,
        "n_groups": 8,
        "norm_before_gate": True,
        "num_heads": 128,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "rms_norm": True,
        "state_size": 128,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_init_scheme": "random",
        "time_step_limit": [0.0, float("inf")],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 256,
        "time_step_scale": 1.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.0.dev0",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": 32768,
    },
}
WITHOUT_ROPE = ("Mamba-Codestral-7B",)
