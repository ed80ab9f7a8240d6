"""Packages of hybrids with random weights: a layer of linear attention and a layer of attention."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from rdrr_format.dtypes import parse_dtype
from rdrr_format.layouts import geometry, parse_layout
from rdrr_manifests.package import Package, open_package
from support.manifests import TOKENIZER, valid_manifest, write_manifest

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 32, 300
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL = 2, 4, 16, 24, 4


def hybrid_manifest() -> dict[str, Any]:
    """Return the manifest of a model of two layers, the first of which has recurrent states."""
    values = VALUE_HEADS * VALUE_DIM
    channels = 2 * KEY_HEADS * KEY_DIM + values
    linear, full = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        f"{linear}in_proj_qkv.weight": (channels, HIDDEN),
        f"{linear}in_proj_z.weight": (values, HIDDEN),
        f"{linear}in_proj_b.weight": (VALUE_HEADS, HIDDEN),
        f"{linear}in_proj_a.weight": (VALUE_HEADS, HIDDEN),
        f"{linear}conv1d.weight": (channels, 1, KERNEL),
        f"{linear}A_log": (VALUE_HEADS,),
        f"{linear}dt_bias": (VALUE_HEADS,),
        f"{linear}norm.weight": (VALUE_DIM,),
        f"{linear}out_proj.weight": (HIDDEN, values),
        f"{full}q_proj.weight": (2 * HEADS * HEAD_DIM, HIDDEN),
        f"{full}k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{full}v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{full}o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
    }
    for layer in range(2):
        head = f"model.layers.{layer}."
        shapes |= {
            f"{head}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{head}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{head}mlp.down_proj.weight": (HIDDEN, INNER),
            f"{head}input_layernorm.weight": (HIDDEN,),
            f"{head}post_attention_layernorm.weight": (HIDDEN,),
        }
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    manifest = copy.deepcopy(valid_manifest())
    manifest["architecture"] |= {
        "hiddenSize": HIDDEN,
        "intermediateSize": INNER,
        "numAttentionHeads": HEADS,
        "numKeyValueHeads": KV_HEADS,
        "headDim": HEAD_DIM,
        "vocabSize": VOCAB,
        "maxSeqLen": 512,
        "linearNumKeyHeads": KEY_HEADS,
        "linearNumValueHeads": VALUE_HEADS,
        "linearKeyHeadDim": KEY_DIM,
        "linearValueHeadDim": VALUE_DIM,
        "linearConvKernelDim": KERNEL,
    }
    manifest["inference"]["attention"] |= {
        "queryPreAttnScalar": HEAD_DIM,
        "attentionOutputGate": True,
    }
    kinds = ["linear_attention", "full_attention"]
    manifest["inference"]["layerPattern"] = {"type": "custom", "layerTypes": kinds}
    manifest["inference"]["output"]["tieWordEmbeddings"] = False
    manifest["tensors"] = {}
    position, row = 0, parse_layout("row")
    for name, shape in shapes.items():
        size = geometry(parse_dtype("F32"), shape, row).size
        manifest["tensors"][name] = {
            "shape": list(shape),
            "dtype": "F32",
            "size": size,
            "role": "other",
            "shard": 0,
            "offset": position,
        }
        position += size
    shard = manifest["shards"][0] | {"size": position}
    return manifest | {"shards": [shard], "totalSize": position}


def write_hybrid(folder: Path, rng: np.random.Generator) -> Package:
    """Write such a package, with weights that keep activations near 1, and open it."""
    manifest = hybrid_manifest()
    with (folder / "shard_00000.bin").open("wb") as file:
        for name, entry in manifest["tensors"].items():
            centre = 1.0 if "norm" in name else 0.0
            width = entry["shape"][-1] if len(entry["shape"]) > 1 else 25
            scale = width**-0.5  # embeddings too, so that a token is not dominated by the last one
            values = centre + scale * rng.standard_normal(entry["shape"])
            file.write(values.astype("<f4").tobytes())
    if manifest.get("tokenizer"):
        (folder / manifest["tokenizer"]["file"]).write_text(TOKENIZER, encoding="utf-8")
    return open_package(write_manifest(folder, manifest).parent)
