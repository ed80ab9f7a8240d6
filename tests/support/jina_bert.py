"""Jina BERT v2 in torch: transformers' BERT with ALiBi, gated feed-forwards and no positions.

transformers has no such model. ALiBi is a mask that is added to the scores, with slopes as the
paper (arXiv 2108.12409) states them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

SLOPES = {
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
}
"""The slope of each head, by the number of heads."""

KEYS = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean"}
_RENAMED = {
    ".intermediate.gated_layers.": ".mlp.gated_layers.",
    ".output.dense.": ".mlp.wo.",
    ".output.LayerNorm.": ".mlp.layernorm.",
}


class _Gates(torch.nn.Module):
    """The gated half of a feed-forward network: the gates come first."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gated_layers = torch.nn.Linear(hidden, 2 * inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates, ups = self.gated_layers(x).chunk(2, dim=-1)
        return torch.nn.functional.gelu(gates) * ups


def with_gates(model: Any) -> Any:
    """Return a BERT of transformers with the feed-forwards of Jina BERT, and without positions."""
    body = getattr(model, "bert", model)
    for layer in body.encoder.layer:
        layer.intermediate = _Gates(model.config.hidden_size, model.config.intermediate_size)
    model.config.update(KEYS)
    return model


def remove_positions(model: Any) -> None:
    """Set the embeddings of positions, which Jina BERT lacks, to zero."""
    getattr(model, "bert", model).embeddings.position_embeddings.weight.data.zero_()


def alibi_mask(heads: int, length: int) -> torch.Tensor:
    """Return what is added to the scores, [1, heads, length, length]."""
    places = torch.arange(length)
    distances = (places - places.unsqueeze(1)).abs()
    return -torch.tensor(SLOPES[heads]).view(1, -1, 1, 1) * distances


def save_as_jina_bert(model: Any, folder: Path) -> None:
    """Save a model with the names of Jina BERT's publisher."""
    model.save_pretrained(folder)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "position_embeddings" in name:
            continue
        if ".attention.output." not in name:
            for theirs, ours in _RENAMED.items():
                name = name.replace(theirs, ours)
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["architectures"] = [name.replace("Bert", "JinaBert") for name in config["architectures"]]
    file.write_text(json.dumps(config), encoding="utf-8")
