"""Draft heads for tiny checkpoints, and what such a head computes, by the layers of transformers.

transformers ignores the heads of the checkpoints that have one, so the formula is written here with
its embedding, its decoder layer and its norms.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

F32 = np.ndarray[Any, np.dtype[np.float32]]

QWEN = {
    "layer": "mtp.layers.0.",
    "fc": "mtp.fc",
    "embedding": "mtp.pre_fc_norm_embedding",
    "hidden": "mtp.pre_fc_norm_hidden",
    "norm": "mtp.norm",
}
"""The names of a head in Qwen's checkpoints."""


def names_as_a_layer(layer: int) -> dict[str, str]:
    """Return the names of a head that counts as a layer, as in DeepSeek's checkpoints."""
    stem = f"model.layers.{layer}."
    return {
        "layer": stem,
        "fc": f"{stem}eh_proj",
        "embedding": f"{stem}enorm",
        "hidden": f"{stem}hnorm",
        "norm": f"{stem}shared_head.norm",
    }


def has_own_layer(folder: Path) -> bool:
    """Return whether checkpoints of a model count the head as a layer after the last one."""
    return "qwen" not in _config(folder)["model_type"]


def add_head(folder: Path, rng: np.random.Generator) -> dict[str, F32]:
    """Add a head with random weights to a checkpoint of one file; return its tensors by name."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors: dict[str, F32] = load_file(path)
    layers, size = _config(folder)["num_hidden_layers"], _config(folder)["hidden_size"]
    layout = names_as_a_layer(layers) if has_own_layer(folder) else QWEN
    last = f"model.layers.{layers - 1}."
    head = {
        layout["layer"] + name.removeprefix(last): _random_like(tensor, rng)
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    head[f"{layout['fc']}.weight"] = _normal(rng, size, 2 * size) / np.float32((2 * size) ** 0.5)
    for part in ("embedding", "hidden", "norm"):
        head[f"{layout[part]}.weight"] = 1 + _normal(rng, size) / 4
    if has_own_layer(folder):
        head[f"{layout['layer']}embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
        head[f"{layout['layer']}shared_head.head.weight"] = tensors["lm_head.weight"]
        _write_config(folder, num_nextn_predict_layers=1)
    save_file(tensors | head, path, metadata={"format": "pt"})
    return head


def head_logits(
    folder: Path, head: dict[str, F32], ids: Sequence[int], kept: int | None = None
) -> F32:
    """Return the logits of a head, f32 [len(ids) - 1, vocab]; row p predicts the token p + 2.

    Args:
        folder: The checkpoint.
        head: The head's tensors by name, from `add_head`.
        ids: Token ids.
        kept: Number of first tokens whose hidden state is the model's; the rows of later ones read
            the state of the head itself. All if None.
    """
    import torch
    from transformers import AutoModelForCausalLM

    layers = _config(folder)["num_hidden_layers"]
    layout = names_as_a_layer(layers) if has_own_layer(folder) else QWEN
    longer = _with_one_more_layer(folder, head, layout["layer"])
    model = AutoModelForCausalLM.from_pretrained(longer, dtype=torch.float32).eval()
    weights = {name: torch.from_numpy(np.array(values)) for name, values in head.items()}
    body, layer = model.model, model.model.layers[-1]
    norms = {}
    for part in ("embedding", "hidden", "norm"):
        norms[part] = copy.deepcopy(body.norm)
        norms[part].load_state_dict({"weight": weights[f"{layout[part]}.weight"]})
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states = original.model(torch.tensor([list(ids)])).last_hidden_state[:, :-1]
        embedded = norms["embedding"](body.embed_tokens(torch.tensor([list(ids)])))[:, 1:]
        rows, count = [], len(ids) - 1
        for last in [count] if kept is None else range(min(kept, count), count + 1):
            # Row p of the head reads the model's state where it is kept, else the head's own.
            before = states[:, :last]
            if kept is not None and last > kept:
                before = torch.cat((states[:, :kept], *rows), dim=1)
            both = torch.cat((embedded[:, :last], norms["hidden"](before)), dim=-1)
            x = both @ weights[f"{layout['fc']}.weight"].T
            positions = torch.arange(last)[None]
            mask = torch.full((last, last), -1e30).triu(1)[None, None]
            turns = body.rotary_emb(x, positions)
            out = layer(x, position_embeddings=turns, attention_mask=mask, position_ids=positions)
            final = norms["norm"](out[0] if isinstance(out, tuple) else out)
            rows.append(final[:, -1:])
        logits = model.lm_head(final)[0]
    return logits.numpy()


def make_predictable(
    folder: Path, head: dict[str, F32], rng: np.random.Generator, *, by: str
) -> list[int]:
    """Change a checkpoint of Qwen so that each token has one successor, which its head knows.

    Args:
        folder: The checkpoint.
        head: The head's tensors by name, from `add_head`.
        rng: Chooses the successors.
        by: What the head predicts the token from: `embedding` of the token before it, or `hidden`
            state of the token before that.

    Returns:
        The successor of each token.
    """
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors: dict[str, F32] = load_file(path)
    vocab, size = tensors["model.embed_tokens.weight"].shape
    order = rng.permutation(vocab)
    after = np.empty(vocab, int)
    after[order] = np.roll(order, -1)  # one cycle
    embedding = _normal(rng, vocab, size)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    silent = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "norm.weight")
    for name, tensor in (tensors | head).items():
        if name.endswith((*silent, "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")):
            tensors[name] = np.zeros_like(tensor)  # the norms of Qwen multiply by 1 + w
    tensors["model.embed_tokens.weight"] = embedding
    tensors["lm_head.weight"] = embedding[np.argsort(after)]
    successor = np.linalg.lstsq(embedding, embedding[after], rcond=None)[0].T
    parts = {"embedding": np.eye(size), "hidden": successor}
    tensors["mtp.fc.weight"] = np.concatenate(
        [values if by == part else np.zeros_like(values) for part, values in parts.items()], axis=1
    ).astype(np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    return after.tolist()


def _with_one_more_layer(folder: Path, head: dict[str, F32], stem: str) -> Path:
    """Write a checkpoint whose last layer is that of the head, for transformers to load."""
    from safetensors.numpy import load_file, save_file

    config, longer = _config(folder), folder / "longer"
    shutil.copytree(folder, longer, ignore=shutil.ignore_patterns("longer"), dirs_exist_ok=True)
    layers = config["num_hidden_layers"]
    more = {"num_hidden_layers": layers + 1}
    if config.get("layer_types") is not None:
        more["layer_types"] = [*config["layer_types"][:layers], "full_attention"]
    if config.get("mlp_layer_types") is not None:
        kinds = config["mlp_layer_types"][:layers]
        more["mlp_layer_types"] = [*kinds, kinds[-1]]
    _write_config(longer, **more)
    tensors = load_file(folder / "model.safetensors")
    last = f"model.layers.{layers}."
    tensors |= {
        last + n.removeprefix(stem): tensor for n, tensor in head.items() if n.startswith(stem)
    }
    save_file(tensors, longer / "model.safetensors", metadata={"format": "pt"})
    return longer


def _config(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return document


def _write_config(folder: Path, **more: object) -> None:
    text = json.dumps(_config(folder) | more)
    (folder / "config.json").write_text(text, encoding="utf-8")


def _normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def _random_like(tensor: F32, rng: np.random.Generator) -> F32:
    """Return random values of the same size; those of norms are far from those of other layers."""
    spread = tensor.std() if tensor.ndim > 1 else 0.25
    return (tensor.mean() + spread * _normal(rng, *tensor.shape)).astype(np.float32)
