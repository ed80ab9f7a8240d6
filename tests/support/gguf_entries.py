"""Entries, tokenizers and tensors of GGUF files, written as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rdrr_converter.gguf.file import read_gguf
from rdrr_format.dtypes import DTYPES
from rdrr_format.encoding import encode_tensor

FLOAT16S = {
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_XS": (0,),
}
"""Byte offsets of the float16 fields in the block types that occur only in GGUF files."""


def tokenizer_entries(checkpoint: Path) -> dict[str, Any]:
    """Return the tokenizer of a checkpoint as metadata entries (byte-level BPE only)."""
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    ids = {index: token for token, index in tokenizer["model"]["vocab"].items()}
    ids |= {index: token["content"] for index, token in added.items()}
    # llama.cpp's converter pads the vocabulary with unused tokens to the rows of the embedding.
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    size = config.get("text_config", config)["vocab_size"]
    tokens = [ids.get(index, f"[PAD{index}]") for index in range(size)]
    kinds = [1 if index in ids else 5 for index in range(size)]
    for index, token in added.items():
        kinds[index] = 3 if token["special"] else 4
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in _merges(tokenizer)]
    entries = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": tokens.index(settings["bos_token"]),
        "tokenizer.ggml.eos_token_id": tokens.index(settings["eos_token"]),
        "tokenizer.ggml.add_bos_token": settings["add_bos_token"],
    }
    if merges:
        entries["tokenizer.ggml.merges"] = merges
    if "chat_template" in settings:
        entries["tokenizer.chat_template"] = settings["chat_template"]
    return entries


def _merges(tokenizer: Mapping[str, Any]) -> list[Any]:
    return tokenizer["model"]["merges"]


def add_entry(writer: Any, key: str, value: Any) -> None:
    """Add a metadata entry; None omits it."""
    if value is None:
        return
    if key.startswith("general."):
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def add_tensor(writer: Any, name: str, values: np.ndarray, dtype: str) -> None:
    """Add a tensor in one of the types of ggml."""
    kind = gguf.GGMLQuantizationType[dtype]
    if dtype in ("F32", "F16"):
        writer.add_tensor(name, values.astype(DTYPES[dtype].numpy))
        return
    if dtype in DTYPES:
        matrix = values.reshape(-1, values.shape[-1])
        raw = encode_tensor(matrix, DTYPES[dtype]).reshape(*values.shape[:-1], -1)
    else:
        raw = random_blocks(values, kind)
    writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=kind)


def random_blocks(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return random blocks that decode to finite values: only their float16 fields are chosen.

    gguf-py can decode more types than it can encode. The random bytes are seeded by the values.
    """
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(np.abs(values.view(np.int32)).sum(dtype=np.int64))
    blocks = rng.integers(0, 256, (values.size // elements, size), np.uint8)
    for at in FLOAT16S[kind.name]:
        numbers = rng.uniform(1e-4, 1e-2, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = numbers[:, None].view(np.uint8)
    if kind is gguf.GGMLQuantizationType.MXFP4:
        blocks[:, 0] = rng.integers(110, 124, len(blocks))
    return blocks.reshape(values.shape[0], -1)


def rewritten(
    path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any], out: Path
) -> Path:
    """Write a GGUF of scalars again, after a change of its metadata and tensors; return `out`."""
    reader = gguf.GGUFReader(path)
    metadata = dict(read_gguf(path).metadata)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    change(metadata, tensors)
    writer = gguf.GGUFWriter(out, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        is_count = type(value) is int and value >= 0
        kind = gguf.GGUFValueType.UINT32 if is_count else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return out
