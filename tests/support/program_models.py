"""Small packages for programs, by what they need of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_format.dtypes import parse_dtype
from rdrr_format.layouts import Layout, geometry
from rdrr_manifests.package import Package
from support.hybrids import hybrid_manifest, write_hybrid
from support.packages import HIDDEN, INNER, LAYERS, llama_manifest, write_random_package

MOST = 4096
"""Largest context of the programs in tests."""

EXPERTS = {
    "numExperts": 6,
    "numExpertsPerToken": 2,
    "expertFormat": "mixtral",
    "expertIntermediateSize": 256,
}


def fused_manifest() -> dict[str, Any]:
    """Return the manifest of a Llama in Q4_K, column-major, with gate and up in one matrix."""
    manifest = llama_manifest("Q4_K", "column")
    tensors, shape = manifest["tensors"], (2 * INNER, HIDDEN)
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.mlp."
        gate = tensors.pop(f"{stem}gate_proj.weight")
        del tensors[f"{stem}up_proj.weight"]
        size = geometry(parse_dtype("Q4_K"), shape, Layout.COLUMN).size
        fused = gate | {"shape": list(shape), "size": size, "offset": manifest["totalSize"]}
        tensors[f"{stem}gate_up_proj.weight"] = fused
        manifest["totalSize"] += size
    manifest["shards"][0]["size"] = manifest["totalSize"]
    return manifest


def windowed_manifest() -> dict[str, Any]:
    """Return the manifest of a model with a sliding window, softcaps and two ropes, like Gemma."""
    manifest = llama_manifest("Q8_0", head_dim=128)
    inference = manifest["inference"]
    inference["attention"] |= {"attnLogitSoftcapping": 20.0, "slidingWindow": 9}
    inference["output"] |= {"finalLogitSoftcapping": 5.0}
    kinds = ["sliding_attention", "full_attention"]
    inference["layerPattern"] |= {"type": "custom", "layerTypes": kinds}
    inference["rope"] |= {"ropeTheta": 1e6, "ropeLocalTheta": 1e4}
    return manifest


def padded_manifest(*, layers: int = LAYERS) -> dict[str, Any]:
    """Return the manifest of a Llama in F16 whose widths are no multiples of 4."""
    manifest, position = llama_manifest("F16", layers=layers), 0
    narrow = {HIDDEN: HIDDEN - 2, INNER: INNER - 1}
    for entry in manifest["tensors"].values():
        entry["shape"] = [narrow.get(size, size) for size in entry["shape"]]
        entry["size"] = geometry(parse_dtype(entry["dtype"]), entry["shape"], Layout.ROW).size
        entry["offset"], position = position, position + entry["size"]
    manifest["architecture"] |= {"hiddenSize": HIDDEN - 2, "intermediateSize": INNER - 1}
    manifest["shards"][0]["size"] = manifest["totalSize"] = position
    return manifest


def embedding_manifest(*, causal: bool) -> dict[str, Any]:
    """Return the manifest of an embedding model whose hidden states are no multiple of 4 wide.

    It has one layer, since its texts are long.
    """
    manifest = padded_manifest(layers=1)
    manifest["inference"]["attention"]["causal"] = causal
    manifest["inference"]["output"]["embeddingPostprocessor"] = {"poolingMode": "mean"}
    return manifest


Write = Callable[[Path, np.random.Generator], Package]

MODELS: Mapping[str, Write] = {
    "row-major": lambda folder, rng: write_random_package(folder, llama_manifest(), rng),
    "transposed and fused": lambda folder, rng: write_random_package(folder, fused_manifest(), rng),
    "window and softcaps": lambda folder, rng: write_random_package(
        folder, windowed_manifest(), rng
    ),
    "hybrid": lambda folder, rng: write_hybrid(folder, rng, hybrid_manifest()),
    "mixture": lambda folder, rng: write_random_package(
        folder, llama_manifest("Q4_K", moe=EXPERTS), rng
    ),
    "padded at load": lambda folder, rng: write_random_package(folder, padded_manifest(), rng),
    "decoded at load": lambda folder, rng: write_random_package(
        folder, llama_manifest("F16", "column"), rng
    ),
}
