"""LoRA adapters in PEFT's file format, written without PEFT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from support.safetensor_files import write_safetensors

PREFIX = "base_model.model."
RANK = 4


def adapter_tensors(
    rng: np.random.Generator, module: str, shape: tuple[int, int], rank: int = RANK
) -> dict[str, np.ndarray]:
    """Return random A and B matrices for a module of shape [outputs, inputs], by adapter name."""
    parts = {"lora_A": (rank, shape[1]), "lora_B": (shape[0], rank)}
    return {
        f"{PREFIX}{module}.{part}.weight": rng.standard_normal(size, np.float32)
        for part, size in parts.items()
    }


def write_adapter(folder: Path, tensors: Mapping[str, np.ndarray], **config: Any) -> Path:
    """Write an adapter's folder; `config` overrides keys of a plain LoRA with alpha 6."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder
