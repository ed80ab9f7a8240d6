"""Packages with random weights for a given tensor table, written without the converter.

Block types get random bits with small scales, so that the padding holds values other than zero,
as in packages of other writers. Hashes are not computed, because opening a package checks none.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.dtypes import parse_dtype
from rdrr_format.integrity import hash_bytes
from rdrr_format.layouts import geometry, parse_layout
from rdrr_manifests.package import Package, open_package
from support.manifests import TOKENIZER, valid_manifest, write_manifest

Bytes = npt.NDArray[np.uint8]

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 384, 512, 4, 2, 64, 300, 2
CONTEXT = 512
SMALL: Mapping[str, Any] = {"layers": 1, "hidden": 128, "inner": 128}
"""Options of `llama_manifest` for tests of what does not depend on sizes. On a software adapter a
token costs a third of the CPU time that it takes with one layer of the usual sizes."""

SCALES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,), "Q5_0": (0,), "Q5_K": (0, 2)}
"""Byte offsets of the f16 scales of a block, by type."""

LARGEST_SCALE = {"Q4_K": 1e-4, "Q6_K": 3e-5, "Q8_0": 5e-4, "Q5_0": 2e-3, "Q5_K": 5e-5}


def llama_manifest(
    dtype: str = "Q4_K",
    layout: str = "row",
    *,
    embedding: str = "F16",
    hints: Mapping[str, str] | None = None,
    moe: Mapping[str, Any] | None = None,
    head_dim: int = HEAD_DIM,
    gated: bool = True,
    layers: int = LAYERS,
    hidden: int = HIDDEN,
    inner: int = INNER,
) -> dict[str, Any]:
    """Return the manifest of a small Llama with K = 384, no multiple of 256, and a tied head.

    With `moe`, a `moeConfig`, all layers but the first have experts with Qwen's tensor names.
    Without gates, the activation is relu2, and the shared expert has no gate of its own either.
    """
    widths = {"q_proj": HEADS, "k_proj": KV_HEADS, "v_proj": KV_HEADS}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "model.embed_tokens.weight": ((VOCAB, hidden), embedding)
    }
    for layer in range(layers):
        head = f"model.layers.{layer}."
        for name, count in widths.items():
            shapes[f"{head}self_attn.{name}.weight"] = ((count * head_dim, hidden), dtype)
        shapes |= {
            f"{head}self_attn.o_proj.weight": ((hidden, HEADS * head_dim), dtype),
            **(
                _experts(f"{head}mlp.", dtype, moe, gated=gated)
                if moe is not None and layer
                else _matrices(f"{head}mlp.", (inner, hidden), dtype, gated=gated)
            ),
            f"{head}input_layernorm.weight": ((hidden,), "F32"),
            f"{head}post_attention_layernorm.weight": ((hidden,), "F32"),
        }
    shapes["model.norm.weight"] = ((hidden,), "F32")
    manifest = copy.deepcopy(valid_manifest())
    manifest["architecture"] |= {
        "numLayers": layers,
        "hiddenSize": hidden,
        "intermediateSize": inner,
        "numAttentionHeads": HEADS,
        "numKeyValueHeads": KV_HEADS,
        "headDim": head_dim,
        "vocabSize": VOCAB,
        "maxSeqLen": CONTEXT,
    }
    manifest["inference"]["attention"]["queryPreAttnScalar"] = head_dim
    if not gated:
        manifest["inference"]["ffn"] |= {"activation": "relu2", "gatedActivation": False}
    manifest["optimizations"] = {"kernelHints": dict(hints or {})}
    manifest["moeConfig"] = moe
    manifest["tensors"], total = _table(shapes, layout)
    manifest["totalSize"] = total
    manifest["shards"] = [manifest["shards"][0] | {"size": total}]
    return manifest


def _experts(
    head: str, dtype: str, moe: Mapping[str, Any], *, gated: bool
) -> dict[str, tuple[tuple[int, ...], str]]:
    experts, width = moe["numExperts"], moe["expertIntermediateSize"]
    latent = moe.get("expertLatentSize")
    tensors: dict[str, tuple[tuple[int, ...], str]] = {
        f"{head}gate.weight": ((experts, HIDDEN), "F32")
    }
    for number in range(experts):
        stem = f"{head}experts.{number}."
        tensors |= _matrices(stem, (width, latent or HIDDEN), dtype, gated=gated)
    if latent:
        tensors[f"{head}fc1_latent_proj.weight"] = ((latent, HIDDEN), dtype)
        tensors[f"{head}fc2_latent_proj.weight"] = ((HIDDEN, latent), dtype)
    if shared := moe.get("sharedExpertIntermediateSize"):
        tensors |= _matrices(f"{head}shared_expert.", (shared, HIDDEN), dtype, gated=gated)
        if gated:
            tensors[f"{head}shared_expert_gate.weight"] = ((1, HIDDEN), "F16")
    return tensors


def _matrices(
    head: str, shape: tuple[int, int], dtype: str, *, gated: bool
) -> dict[str, tuple[tuple[int, ...], str]]:
    gate = {f"{head}gate_proj.weight": (shape, dtype)} if gated else {}
    return gate | {
        f"{head}up_proj.weight": (shape, dtype),
        f"{head}down_proj.weight": (shape[::-1], dtype),
    }


def _table(
    shapes: Mapping[str, tuple[tuple[int, ...], str]], layout: str
) -> tuple[dict[str, Any], int]:
    entries: dict[str, Any] = {}
    position = 0
    for name, (shape, dtype) in shapes.items():
        is_matmul = "proj" in name
        kind = parse_dtype(dtype)
        size = geometry(kind, shape, parse_layout(layout if is_matmul else "row")).size
        role = "matmul" if is_matmul else "norm" if "norm" in name else "embedding"
        entries[name] = {
            "shape": list(shape),
            "dtype": kind.manifest_name,
            "size": size,
            "role": role,
            "shard": 0,
            "offset": position,
        } | ({"layout": layout} if is_matmul else {})
        position += size
    return entries, position


def write_random_package(
    folder: Path, manifest: Mapping[str, Any], rng: np.random.Generator
) -> Package:
    """Write shards with random weights for the manifest's tensor table, and open the package."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [np.zeros(shard["size"], np.uint8) for shard in manifest["shards"]]
    for entry in manifest["tensors"].values():
        raw, at = random_bytes(entry, rng), 0
        for run in entry.get("spans") or [entry | {"shardIndex": entry["shard"]}]:
            part = raw[at : at + run["size"]]
            files[run["shardIndex"]][run["offset"] : run["offset"] + run["size"]] = part
            at += run["size"]
    shards = []
    for shard, data in zip(manifest["shards"], files, strict=True):
        data.tofile(folder / shard["filename"])
        digest = hash_bytes(manifest.get("hashAlgorithm", "sha256"), data)
        shards.append(shard | {"hash": digest})
    write_manifest(folder, {**manifest, "shards": shards})
    if manifest.get("tokenizer"):
        (folder / manifest["tokenizer"]["file"]).write_text(TOKENIZER, encoding="utf-8")
    return open_package(folder)


def replace_first(folder: Path, values: Mapping[str, float]) -> None:
    """Replace the first element of some F32 vectors, by their names, in the shards of a package."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name, value in values.items():
        entry = manifest["tensors"][name]
        path = folder / manifest["shards"][entry["shard"]]["filename"]
        data = np.fromfile(path, np.uint8)
        at = entry["offset"]
        data[at : at + 4] = np.float32(value).reshape(1).view(np.uint8)
        data.tofile(path)


def random_bytes(entry: Mapping[str, Any], rng: np.random.Generator) -> Bytes:
    """Return random stored bytes: norms about 1, matrices small enough for finite logits."""
    kind, size = parse_dtype(entry["dtype"]), entry["size"]
    if kind.is_block:
        blocks = rng.integers(0, 256, (size // kind.block_bytes, kind.block_bytes), dtype=np.uint8)
        for at in SCALES[kind.name]:
            scales = rng.uniform(0.1, 1.0, len(blocks)) * LARGEST_SCALE[kind.name]
            signs = rng.choice([-1.0, 1.0], len(blocks))
            blocks[:, at : at + 2] = (scales * signs).astype("<f2")[:, None].view(np.uint8)
        return blocks.reshape(-1)
    if kind.name == "F16" and len(entry["shape"]) == 2:
        # Random signs and mantissas with an exponent of -6; fast, because embeddings are large.
        bits = rng.integers(0, 1 << 16, size // 2, dtype=np.uint16)
        return ((bits & 0x83FF) | 0x2400).astype("<u2").view(np.uint8)
    values = (1.0 + 0.1 * rng.standard_normal(size // kind.block_bytes)).astype("<f4")
    if len(entry["shape"]) == 2:
        values = (values - 1.0).astype("<f4")
    if kind.name == "F16":
        return values.astype("<f2").view(np.uint8)
    words = values.view("<u4")
    return (words >> 16).astype("<u2").view(np.uint8) if kind.name == "BF16" else values.view("u1")
