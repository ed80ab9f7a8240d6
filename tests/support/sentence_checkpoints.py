"""Checkpoints of sentence-transformers: a tiny language model with modules after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}

FLAGS = {"cls": "cls_token", "last": "lasttoken", "mean": "mean_tokens"}


def add_modules(
    folder: Path,
    hidden: int,
    pooling: str,
    *,
    normalize: bool = True,
    include_prompt: bool = True,
    default: str | None = None,
    layers: Sequence[np.ndarray] = (),
    biases: Sequence[np.ndarray | None] = (),
) -> None:
    """Write the files that turn a checkpoint of a language model into an embedding model."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    for index, (weight, bias) in enumerate(zip(layers, biases, strict=True), 2):
        kinds.append(("Dense", f"{index}_Dense"))
        _write_dense(folder / f"{index}_Dense", weight, bias)
    kinds += [("Normalize", f"{len(kinds)}_Normalize")] if normalize else []
    _write(
        folder / "modules.json",
        [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, (kind, path) in enumerate(kinds)
        ],
    )
    flags = {f"pooling_mode_{flag}": name == pooling for name, flag in FLAGS.items()}
    settings = {"word_embedding_dimension": hidden, **flags, "include_prompt": include_prompt}
    _write(folder / "1_Pooling" / "config.json", settings)
    _write(
        folder / "config_sentence_transformers.json",
        {"prompts": PROMPTS, "default_prompt_name": default},
    )


def _write_dense(folder: Path, weight: np.ndarray, bias: np.ndarray | None) -> None:
    from safetensors.numpy import save_file

    settings = {"in_features": weight.shape[1], "out_features": weight.shape[0]}
    identity = "torch.nn.modules.linear.Identity"
    settings |= {"bias": bias is not None, "activation_function": identity}
    _write(folder / "config.json", settings)
    tensors = {"linear.weight": weight.astype(np.float32)}
    tensors |= {} if bias is None else {"linear.bias": bias.astype(np.float32)}
    save_file(tensors, folder / "model.safetensors")


def expected_embedding(
    rows: Any,
    pooling: str,
    *,
    normalize: bool = True,
    skipped: int = 0,
    layers: Sequence[np.ndarray] = (),
    biases: Sequence[np.ndarray | None] = (),
) -> np.ndarray:
    """Return what sentence-transformers makes of hidden states [tokens, hidden], by its formula."""
    import torch

    rows = rows.detach().double()
    pooled = {"cls": rows[0], "last": rows[-1], "mean": rows[skipped:].mean(0)}[pooling]
    for weight, bias in zip(layers, biases, strict=True):
        added = None if bias is None else torch.from_numpy(bias)
        pooled = torch.nn.functional.linear(pooled, torch.from_numpy(weight), added)
    if normalize:
        pooled = torch.nn.functional.normalize(pooled, p=2, dim=0)
    return pooled.numpy()


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
