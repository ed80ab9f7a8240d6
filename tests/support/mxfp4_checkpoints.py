"""Rewrite a checkpoint of gpt-oss with its experts in MXFP4, as published ones have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

FLOATS = np.array((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))


def pack(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round matrices [experts, N, K] to MXFP4.

    Returns:
        Blocks, uint8 [experts, N, K / 32, 16]; scales, uint8 [experts, N, K / 32]; and the values
        that they stand for, float32 [experts, N, K].
    """
    # The library that saves them takes the bytes of an array as they are.
    matrices = np.ascontiguousarray(matrices, np.float64)
    groups = matrices.reshape(*matrices.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(axis=-1))) - 2
    steps = groups / 2.0 ** exponents[..., None]
    codes = np.abs(np.abs(steps)[..., None] - FLOATS).argmin(axis=-1)
    values = np.sign(steps) * FLOATS[codes] * 2.0 ** exponents[..., None]
    nibbles = (codes + 8 * (steps < 0)).astype(np.uint8)
    blocks = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    scales = (exponents + 127).astype(np.uint8)
    return blocks, scales, values.reshape(matrices.shape).astype(np.float32)


def pack_experts(folder: Path, model: Any) -> None:
    """Store the experts of a saved model in MXFP4, and give the model the rounded values."""
    import torch

    path = folder / "model.safetensors"
    tensors, state = load_file(path), model.state_dict()
    for name in [key for key in tensors if key.endswith(("experts.gate_up_proj", "down_proj"))]:
        # transformers holds [experts, K, N]; published checkpoints hold [experts, N, K].
        blocks, scales, values = pack(np.swapaxes(tensors.pop(name), 1, 2))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name] = torch.from_numpy(np.ascontiguousarray(values.swapaxes(1, 2)))
    save_file(tensors, path, {"format": "pt"})
    model.load_state_dict(state)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        "quant_method": "mxfp4",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
