"""Write checkpoints of families with LayerNorm as GGUF, the way llama.cpp's converter does.

The names are those of gguf-py's own tables, so that they do not come from the tables under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from support.gguf_entries import add_entry, add_tensor, tokenizer_entries
from support.gguf_files import OLDER
from support.older_names import falcon_projections

EPS = ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")


def write_older_gguf(checkpoint: Path, path: Path, dtype: str = "F32") -> Path:
    """Write a checkpoint in float32 as GGUF, with matrices in one type."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = OLDER[config["model_type"]]
    arch = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    layers = _first(config, "num_hidden_layers", "n_layer")
    names = gguf.get_tensor_name_map(arch, layers)
    writer = gguf.GGUFWriter(path, name)
    entries = {f"{name}.{key}": value for key, value in _entries(config).items()}
    for key, value in {**entries, **tokenizer_entries(checkpoint)}.items():
        add_entry(writer, key, value)
    stored = load_file(checkpoint / "model.safetensors")
    for ours, values in _with_stacked_norms(stored):
        theirs = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, ours
        changed = _as_llama_cpp(ours, values, config)
        add_tensor(writer, theirs, changed, "F32" if changed.ndim == 1 else dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _first(config: Mapping[str, Any], *keys: str) -> Any:
    return next(config[key] for key in keys if config.get(key) is not None)


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden = _first(config, "hidden_size", "n_embd")
    heads = _first(config, "num_attention_heads", "n_head")
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or hidden // heads
    context = _first(config, "max_position_embeddings", "n_positions")
    entries: dict[str, Any] = {
        "block_count": _first(config, "num_hidden_layers", "n_layer"),
        "context_length": context,
        "embedding_length": hidden,
        "feed_forward_length": _first(config, "n_inner", "ffn_hidden_size", "intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.layer_norm_epsilon": float(_first(config, *EPS)),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    if config["model_type"] == "falcon":
        is_shared = config["multi_query"] and not config["new_decoder_architecture"]
        entries["attention.head_count_kv"] = 1 if is_shared else config["num_kv_heads"]
        entries["tensor_data_layout"] = "jploski"
    if "rope_theta" in rope:
        entries["rope.freq_base"] = float(rope["rope_theta"])
    if "logit_scale" in config:
        entries["logit_scale"] = config["logit_scale"]
    if "use_parallel_residual" in config:
        entries["use_parallel_residual"] = config["use_parallel_residual"]
    if config.get("sliding_window"):
        entries["attention.sliding_window"] = config["sliding_window"]
    if config["model_type"] == "cohere2":
        entries["attention.sliding_window_pattern"] = (
            config["layer_types"].index("full_attention") + 1
        )
    return entries


def _with_stacked_norms(
    stored: Mapping[str, np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors; the norms that StableLM has for each head become one matrix."""
    norms: dict[str, dict[int, np.ndarray]] = {}
    for name, values in stored.items():
        if ".norms." not in name:
            yield name, values
            continue
        stem, _, rest = name.partition(".norms.")
        norms.setdefault(stem, {})[int(rest.split(".")[0])] = values
    for stem, parts in norms.items():
        yield f"{stem}.weight", np.stack([parts[head] for head in range(len(parts))])


def _as_llama_cpp(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Return what llama.cpp's converter makes of a tensor."""
    part, ending = name.split(".")[-2:]
    if part in ("c_attn", "c_proj", "c_fc") and ending == "weight" and ".h." in name:
        return np.ascontiguousarray(values.T)
    if config["model_type"] == "falcon" and part == "query_key_value":
        return np.concatenate(falcon_projections(values, config["num_attention_heads"]))
    if part == "query_key_value":
        by_head = values.reshape(config["num_attention_heads"], 3, -1, *values.shape[1:])
        return np.concatenate([by_head[:, at].reshape(-1, *values.shape[1:]) for at in range(3)])
    if config["model_type"] == "nemotron" and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    return values


def payloads(path: Path) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    """Return shape, type and bytes of every tensor, as gguf-py reads them."""
    return {
        tensor.name: (tuple(map(int, tensor.shape)), tensor.tensor_type.name, tensor.data.tobytes())
        for tensor in gguf.GGUFReader(path).tensors
    }
