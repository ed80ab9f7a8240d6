"""Valid manifests and packages, small enough to build in every test that corrupts one."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_format.dtypes import parse_dtype
from rdrr_format.layouts import geometry, parse_layout

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 64, 96, 4, 2, 16, 40, 2
SHARD_SIZE = 32768
TOKENIZER = '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}'
"""The smallest tokenizer that the tokenizers library accepts."""


def tensor_shapes(layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    """Return the tensor names and logical shapes of a Llama-like model."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(layers):
        parts = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return shapes | {"model.norm.weight": (HIDDEN,)}


def role_of(name: str) -> str:
    """Return the role that the format assigns to a tensor of this name."""
    if name.endswith(".bias"):
        return "bias"
    if "embed" in name:
        return "embedding"
    return "norm" if "norm" in name else "matmul"


_DTYPES = {"bias": "F32", "embedding": "F16", "norm": "F32", "matmul": "Q8_0"}


def place(shapes: Mapping[str, tuple[int, ...]], layout: str = "row") -> tuple[dict[str, Any], int]:
    """Return entries packed without gaps into shards of `SHARD_SIZE`, and their total bytes."""
    entries: dict[str, Any] = {}
    position = 0
    for name, shape in shapes.items():
        role = role_of(name)
        own_layout = layout if role == "matmul" else "row"
        dtype = parse_dtype(_DTYPES[role])
        size = geometry(dtype, shape, parse_layout(own_layout)).size
        entry: dict[str, Any] = {
            "shape": list(shape),
            "dtype": dtype.manifest_name,
            "size": size,
            "role": role,
        }
        if role == "matmul":
            entry["layout"] = own_layout
        entries[name] = entry | _byte_spans(position, size)
        position += size
    return entries, position


def _byte_spans(position: int, size: int) -> dict[str, Any]:
    spans, left = [], size
    while left:
        shard, offset = divmod(position, SHARD_SIZE)
        count = min(left, SHARD_SIZE - offset)
        spans.append({"shardIndex": shard, "offset": offset, "size": count})
        position, left = position + count, left - count
    if len(spans) == 1:
        return {"shard": spans[0]["shardIndex"], "offset": spans[0]["offset"]}
    return {"spans": spans}


def valid_manifest(
    layers: int = LAYERS, layout: str = "row", more: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, Any]:
    """Return a manifest of the current version that breaks no rule; its hashes match no file.

    With `more`, it has further tensors of these shapes.
    """
    tensors, total = place(tensor_shapes(layers) | dict(more or {}), layout)
    sizes = [SHARD_SIZE] * (total // SHARD_SIZE) + [total % SHARD_SIZE] * (total % SHARD_SIZE > 0)
    return {
        "version": 1,
        "modelId": "tiny-llama",
        "modelType": "transformer",
        "quantization": "Q8_0",
        "quantizationInfo": {"weights": "q8_0", "embeddings": "f16", "layout": "row"},
        "hashAlgorithm": "sha256",
        "eos_token_id": 2,
        "architecture": {
            "numLayers": layers,
            "hiddenSize": HIDDEN,
            "intermediateSize": INNER,
            "numAttentionHeads": HEADS,
            "numKeyValueHeads": KV_HEADS,
            "headDim": HEAD_DIM,
            "vocabSize": VOCAB,
            "maxSeqLen": 128,
        },
        "moeConfig": None,
        "inference": {
            "schema": None,
            "attention": {"queryPreAttnScalar": HEAD_DIM},
            "normalization": {"rmsNormEps": 1e-5, "postAttentionNorm": True},
            "ffn": {"activation": "silu"},
            "rope": {"ropeTheta": 10000.0},
            "output": {"tieWordEmbeddings": True, "embeddingScale": None, "logitInputScale": 1},
            "layerPattern": {"type": "uniform", "residualBranchScale": 1},
        },
        "optimizations": {"kernelHints": {"q4kMatmul": "auto"}},
        "tokenizer": {"type": "bundled", "file": "tokenizer.json", "vocabSize": VOCAB},
        "conversion": {"tool": "rdrr", "version": "0.1.0", "options": {}},
        "totalSize": total,
        "shards": [
            {
                "index": index,
                "filename": f"shard_{index:05d}.bin",
                "size": size,
                "hash": hashlib.sha256(bytes([index])).hexdigest(),
                "offset": index * SHARD_SIZE,
            }
            for index, size in enumerate(sizes)
        ],
        "tensors": tensors,
    }


def spoiled(change: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a copy of a valid manifest after passing it to `change`, which edits it in place."""
    manifest = copy.deepcopy(valid_manifest() if base is None else base)
    change(manifest)
    return manifest


def payload(manifest: Mapping[str, Any], rng: np.random.Generator) -> bytes:
    """Return the concatenated bytes of all shards: random finite weights in each tensor's type."""
    stream = bytearray(sum(shard["size"] for shard in manifest["shards"]))
    for entry in manifest["tensors"].values():
        raw = _random_bytes(entry, rng)
        runs = entry.get("spans") or [
            {"shardIndex": entry["shard"], "offset": entry["offset"], "size": entry["size"]}
        ]
        at = 0
        for run in runs:
            start = run["shardIndex"] * SHARD_SIZE + run["offset"]
            stream[start : start + run["size"]] = raw[at : at + run["size"]]
            at += run["size"]
    return bytes(stream)


def _random_bytes(entry: Mapping[str, Any], rng: np.random.Generator) -> bytes:
    count = entry["size"]
    if entry["dtype"] == "Q8_0":
        blocks = rng.integers(0, 256, (count // 34, 34), dtype=np.uint8)
        scales = rng.uniform(0.001, 0.1, len(blocks)).astype("<f2")
        blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
        return blocks.tobytes()
    kind = {"F16": "<f2", "F32": "<f4"}[entry["dtype"]]
    return rng.normal(size=count // np.dtype(kind).itemsize).astype(kind).tobytes()


def write_package(
    folder: Path, rng: np.random.Generator, manifest: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write a package with random weights and correct hashes; return its manifest."""
    manifest = valid_manifest() if manifest is None else manifest
    folder.mkdir(parents=True, exist_ok=True)
    stream = payload(manifest, rng)
    for index, shard in enumerate(manifest["shards"]):
        data = stream[index * SHARD_SIZE : index * SHARD_SIZE + shard["size"]]
        (folder / shard["filename"]).write_bytes(data)
        shard["hash"] = hashlib.sha256(data).hexdigest()
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> Path:
    """Write only the manifest of a package."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return path
