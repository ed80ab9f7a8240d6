"""The tensors of state spaces in checkpoints of transformers, and in packages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

FEED_FORWARD = "up_proj|down_proj|gate|experts|shared_experts|fc1_latent_proj|fc2_latent_proj"


def state_space_name(name: str) -> str:
    """Return the name in a package of a tensor of a model whose layers have one branch."""
    if re.search(r"layers\.\d+\.mixer\.|backbone\.|\.norm_f\.|model\.embeddings\.", name) is None:
        return re.sub(r"(layers\.\d+)\.norm\.", r"\1.input_layernorm.", name)
    name = re.sub(r"^(model|backbone)\.", "model.", name)
    name = name.replace("model.embeddings.", "model.embed_tokens.").replace("norm_f.", "norm.")
    name = re.sub(r"(layers\.\d+)\.norm\.", r"\1.input_layernorm.", name)
    name = re.sub(r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1.", name)
    name = re.sub(rf"\.mixer\.({FEED_FORWARD})\.", r".mlp.\1.", name)
    return name.replace(".mixer.", ".mamba.")


def joined_inputs(name: str, state: dict[str, Any]) -> Any:
    """Remove the parts of an input projection from `state`, and return them as one tensor."""
    import torch

    stem, _, kind = state_space_name(name).rpartition(".")
    return torch.cat([state.pop(f"{stem}_{part}.{kind}") for part in ("z", "xbc", "dt")])


def is_input_projection(name: str) -> bool:
    """Return whether a tensor is the projection of gates, inputs and steps, or its bias."""
    return name.endswith((".mixer.in_proj.weight", ".mixer.in_proj.bias")) or name.endswith(
        (".mamba.in_proj.weight", ".mamba.in_proj.bias")
    )


def split_inputs(name: str, whole: np.ndarray, config: Any) -> dict[str, np.ndarray]:
    """Return its parts by their names."""
    keys = vars(config)

    def value(*names: str) -> int:
        return next(keys[name] for name in names if keys.get(name) is not None)

    heads = value("mamba_n_heads", "mamba_num_heads", "num_heads")
    inner = heads * value("mamba_d_head", "mamba_head_dim", "head_dim")
    shared = value("mamba_n_groups", "n_groups") * value(
        "mamba_d_state", "ssm_state_size", "state_size"
    )
    parts = np.split(whole, [inner, 2 * inner + 2 * shared])
    stem, _, kind = name.rpartition(".")
    return {
        f"{stem}_{part}.{kind}": part_values
        for part, part_values in zip(("z", "xbc", "dt"), parts, strict=True)
    }
