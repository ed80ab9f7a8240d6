"""Safetensors files and Llama checkpoints written without torch: fast, and easy to corrupt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NUMPY = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
ODD = {
    "num_hidden_layers": 1,
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
"""With K of 192 and N of 96 and 320, row and column lengths are not multiples of 256."""


def to_stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Convert float32 values to the stored type; BF16 (as uint16) by truncation."""
    values = np.asarray(values, np.float32)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2")
    return values.astype(NUMPY[dtype])


def from_stored(values: np.ndarray) -> np.ndarray:
    """Return the float32 values of an array that `to_stored` returned."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], **metadata: str) -> None:
    """Write stored arrays (uint16 means BF16), and metadata beside them."""
    names = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", np.dtype("<u2"): "BF16"}
    names[np.dtype("<i4")] = "I32"
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    position = 0
    for name, array in tensors.items():
        end = position + array.nbytes
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    write_raw(path, header, b"".join(array.tobytes() for array in tensors.values()))


def write_raw(path: Path, header: object, data: bytes = b"") -> None:
    """Write a file with any header, correct or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a Llama checkpoint with an untied head."""
    hidden, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        for part, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{part}.weight"] = shape
    return {**shapes, "model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def llama_tensors(
    rng: np.random.Generator, dtype: str = "BF16", **overrides: Any
) -> dict[str, np.ndarray]:
    """Return random tensors for `llama_shapes`, in the stored type."""
    shapes = llama_shapes({**LLAMA_CONFIG, **overrides})
    return {
        name: to_stored(rng.standard_normal(shape, np.float32), dtype)
        for name, shape in shapes.items()
    }


def write_llama(
    folder: Path, tensors: Mapping[str, np.ndarray], *, shards: int = 1, **overrides: Any
) -> Path:
    """Write a checkpoint: configuration, weights (sharded if `shards` > 1), tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA_CONFIG, **overrides}), encoding="utf-8")
    vocab = {f"t{index}": index for index in range(300)}
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[index::shards])
        write_safetensors(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index_text, encoding="utf-8")
    return folder
