"""Packages of hybrids with random weights: a layer with recurrent states and one with attention."""

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
    return with_tensors(manifest, shapes)


def state_space_manifest() -> dict[str, Any]:
    """Return the manifest of two layers with a state space; the second also has attention."""
    inner, groups, state = VALUE_HEADS * VALUE_DIM, 2, 20
    channels = inner + 2 * groups * state
    manifest = hybrid_manifest()
    kept = {
        name: tuple(entry["shape"])
        for name, entry in manifest["tensors"].items()
        if "linear_attn" not in name
    }
    kept["model.layers.1.self_attn.q_proj.weight"] = (HEADS * HEAD_DIM, HIDDEN)
    for layer in range(2):
        mixer = f"model.layers.{layer}.mamba."
        kept |= {
            f"{mixer}in_proj_z.weight": (inner, HIDDEN),
            f"{mixer}in_proj_xbc.weight": (channels, HIDDEN),
            f"{mixer}in_proj_dt.weight": (VALUE_HEADS, HIDDEN),
            f"{mixer}conv1d.weight": (channels, 1, KERNEL),
            f"{mixer}A_log": (VALUE_HEADS,),
            f"{mixer}dt_bias": (VALUE_HEADS,),
            f"{mixer}D": (VALUE_HEADS,),
            f"{mixer}norm.weight": (inner,),
            f"{mixer}out_proj.weight": (HIDDEN, inner),
        }
    sizes = manifest["architecture"]
    sizes |= {
        "ssmNumHeads": VALUE_HEADS,
        "ssmHeadDim": VALUE_DIM,
        "ssmNumGroups": groups,
        "ssmStateSize": state,
        "ssmConvKernelDim": KERNEL,
    }
    manifest["architecture"] = {k: v for k, v in sizes.items() if not k.startswith("linear")}
    blocks = manifest["inference"]
    blocks["attention"]["attentionOutputGate"] = False
    kinds = ["state_space", "attention_and_state_space"]
    blocks["layerPattern"] = {"type": "custom", "layerTypes": kinds}
    blocks["stateSpace"] = {"inputMultipliers": [0.5, 2.0, 1.5], "attentionMultiplier": 0.75}
    return with_tensors(manifest, kept)


def with_tensors(manifest: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return a manifest with these tensors in F32, one after the other in one shard."""
    tensors, position, row = {}, 0, parse_layout("row")
    for name, shape in shapes.items():
        size = geometry(parse_dtype("F32"), shape, row).size
        tensors[name] = {
            "shape": list(shape),
            "dtype": "F32",
            "size": size,
            "role": "other",
            "shard": 0,
            "offset": position,
        }
        position += size
    shard = manifest["shards"][0] | {"size": position}
    return manifest | {"tensors": tensors, "shards": [shard], "totalSize": position}


def write_hybrid(
    folder: Path, rng: np.random.Generator, manifest: dict[str, Any] | None = None
) -> Package:
    """Write such a package, with weights that keep activations near 1, and open it."""
    manifest = hybrid_manifest() if manifest is None else manifest
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
