"""The kinds of vision towers in llama.cpp's mmproj files: a row for each, to read and to write it.

A projector's name says what a tower is, and the architecture of the text model says which
projector it has. Names of modules, keys and forms of tensors are those of llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from rdrr_format.errors import ConversionError, SourceError
from rdrr_manifests.models import Processor, Vision

from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Entries
from rdrr_converter.gguf.towers import (
    LIMITS,
    PATCHES,
    POSITION_TABLE,
    SIZES,
    StatedTower,
    TowerFamily,
    TowerMetadata,
)

_NORM_EPS = 1e-6
_MIN_PIXELS, _MAX_PIXELS = 1 << 16, 1 << 24
"""What Qwen publishes with its towers; llama.cpp has bounds for all models, and writes none."""

_GEMMA3_MERGE, _GEMMA4_MERGE, _GEMMA4_TOKENS = 4, 3, 280
"""What llama.cpp takes where a file of Gemma does not state it."""

_STANDARDIZED = frozenset(("v.std_bias", "v.std_scale"))
"""Tensors that a tower of Gemma 4 has if its features are standardized."""

_ENDINGS = tuple(f".{limit}" for limit in LIMITS)


def _rounded(value: float | None) -> float:
    """Return the decimal number whose float32 a file states; the usual epsilon if it has none."""
    return _NORM_EPS if value is None else float(str(np.float32(value)))


def _of_images(file: TowerMetadata, processor: str) -> dict[str, Any]:
    """Return the settings that all image processors have."""
    mean, deviation = file.read.get("image_mean"), file.read.get("image_std")
    return {"image_processor_type": processor, "image_mean": mean, "image_std": deviation}


def _read_qwen(file: TowerMetadata) -> StatedTower:
    read, sizes = file.read, file.sizes
    if not read.accept("attention.layer_norm_epsilon", _NORM_EPS):
        raise ConversionError(
            "a tower with another epsilon of its norms is not known",
            where=f"{read.where}, clip.vision.attention.layer_norm_epsilon",
            expected=_NORM_EPS,
            found=read.get("attention.layer_norm_epsilon"),
        )
    vision = {
        **sizes,
        "temporal_patch_size": len(PATCHES),
        "num_position_embeddings": file.shape(POSITION_TABLE, 2)[0],
        "deepstack_visual_indexes": _tapped(read, sizes["depth"]),
    }
    recipe = {
        **_of_images(file, "Qwen2VLImageProcessor"),
        "patch_size": sizes["patch_size"],
        "temporal_patch_size": len(PATCHES),
        "merge_size": sizes["spatial_merge_size"],
        "min_pixels": read.get("image_min_pixels") or _MIN_PIXELS,
        "max_pixels": read.get("image_max_pixels") or _MAX_PIXELS,
    }
    return StatedTower(vision, recipe)


def _write_qwen(vision: Vision, processor: Processor) -> Entries:
    return {
        "image_max_pixels": processor.max_pixels or _MAX_PIXELS,
        "image_min_pixels": processor.min_pixels or _MIN_PIXELS,
        "image_size": vision.position_grid * processor.patch_size,
        "is_deepstack_layers": [layer in vision.taps for layer in range(vision.num_layers)],
        "spatial_merge_size": vision.merge_size,
    }


def _tapped(read: GgufMetadata, layers: int) -> list[int]:
    """Return the layers that are tapped."""
    flags = read.get("is_deepstack_layers")
    stated = [] if flags is None else flags
    if not isinstance(stated, list) or any(type(flag) is not bool for flag in stated):
        raise SourceError(
            "impossible flags of layers",
            where=f"{read.where}, clip.vision.is_deepstack_layers",
            expected=f"{layers} booleans",
            found=stated,
        )
    return [layer for layer, flag in enumerate(stated) if flag]


def _siglip(file: TowerMetadata) -> dict[str, Any]:
    """Return the configuration of a tower with the body of SigLIP."""
    eps = _rounded(file.read.number("attention.layer_norm_epsilon"))
    return {**file.sizes, "image_size": file.read.size("image_size"), "layer_norm_eps": eps}


def _read_gemma3(file: TowerMetadata) -> StatedTower:
    vision, scale = _siglip(file), _GEMMA3_MERGE
    if file.read.get("projector.scale_factor") is not None:
        scale = file.read.size("projector.scale_factor")
    side = vision["image_size"]
    patches = side // vision["patch_size"]
    if patches % scale:
        raise SourceError(
            "the patches of an image do not make whole tokens",
            where=f"{file.read.where}, clip.vision.projector.scale_factor",
            expected=f"a divisor of {patches}, as each side has patches",
            found=scale,
        )
    recipe = {
        **_of_images(file, "Gemma3ImageProcessor"),
        "size": {"height": side, "width": side},
    }
    return StatedTower(vision, recipe, beside={"mm_tokens_per_image": (patches // scale) ** 2})


def _write_gemma3(vision: Vision, processor: Processor) -> Entries:
    scale = vision.merge_size
    stated = {} if scale == _GEMMA3_MERGE else {"projector.scale_factor": scale}
    return {"image_size": processor.height or 0, **stated}


def _read_idefics3(file: TowerMetadata) -> StatedTower:
    vision = _siglip(file)
    side, longest = vision["image_size"], file.read.get("preproc_image_size")
    recipe = {
        **_of_images(file, "Idefics3ImageProcessor"),
        "size": {"longest_edge": side if longest is None else longest},
        "max_image_size": {"longest_edge": side},
    }
    scale = file.read.size("projector.scale_factor")
    return StatedTower(vision, recipe, beside={"scale_factor": scale})


def _write_idefics3(vision: Vision, processor: Processor) -> Entries:
    longest = 0 if processor.tiles is None else processor.tiles.longest_side
    return {
        "image_size": processor.height or 0,
        "preproc_image_size": longest,
        "projector.scale_factor": vision.merge_size,
    }


def _read_gemma4(file: TowerMetadata) -> StatedTower:
    read, sizes = file.read, file.sizes
    scale, heads = _GEMMA4_MERGE, sizes["num_attention_heads"]
    if read.get("projector.scale_factor") is not None:
        scale = read.size("projector.scale_factor")
    vision = {
        **sizes,
        "head_dim": sizes["hidden_size"] // heads,
        "num_key_value_heads": heads,
        "pooling_kernel_size": scale,
        "position_embedding_size": file.shape(POSITION_TABLE, 3)[1],
        "rms_norm_eps": _rounded(read.number("attention.layer_norm_epsilon")),
        "standardize": not _STANDARDIZED.isdisjoint(file.tensors),
        "use_clipped_linears": any(name.endswith(_ENDINGS) for name in file.tensors),
    }
    recipe = {
        **_of_images(file, "Gemma4ImageProcessor"),
        "patch_size": sizes["patch_size"],
        "pooling_kernel_size": scale,
    }
    if read.get("image_max_pixels") is not None:
        token = (sizes["patch_size"] * scale) ** 2
        recipe["max_soft_tokens"] = read.size("image_max_pixels") // token
    # Published models attend to whole images unless layers have inputs of their own, and no key
    # says so.
    is_causal = bool(file.text.get("hidden_size_per_layer_input"))
    seen = {} if is_causal else {"use_bidirectional_attention": "vision"}
    return StatedTower(vision, recipe, text=seen)


def _write_gemma4(vision: Vision, processor: Processor) -> Entries:
    scale, tokens = vision.merge_size, processor.max_tokens
    # llama.cpp makes 2 x - 1 of each value itself. No tower reads the size, but all files have one.
    pairs = list(zip(processor.mean, processor.deviation, strict=True))
    entries: Entries = {
        "image_mean": [mean - deviation for mean, deviation in pairs],
        "image_size": 224,
        "image_std": [2 * deviation for _, deviation in pairs],
    }
    if tokens != _GEMMA4_TOKENS:
        entries["image_max_pixels"] = (tokens or 0) * processor.side**2
    if scale != _GEMMA4_MERGE:
        entries["projector.scale_factor"] = scale
    return entries


_BODY: Mapping[str, str] = MappingProxyType(
    {
        "v.patch_embd": "patch_embed",
        "v.position_embd": "embed_positions",
        "v.blk.{n}.ln1": "layers.{n}.input_layernorm",
        "v.blk.{n}.attn_out": "layers.{n}.self_attn.o_proj",
        "v.blk.{n}.ffn_up": "layers.{n}.mlp.up_proj",
        "v.blk.{n}.ffn_down": "layers.{n}.mlp.down_proj",
    }
)
_SPLIT: Mapping[str, str] = MappingProxyType(
    {f"v.blk.{{n}}.attn_{part}": f"layers.{{n}}.self_attn.{part}_proj" for part in "qkv"}
)
_SIGLIP: Mapping[str, str] = MappingProxyType(
    {
        **_BODY,
        **_SPLIT,
        "v.blk.{n}.ln2": "layers.{n}.post_attention_layernorm",
        "v.post_ln": "merger.norm",
    }
)

QWEN = TowerFamily(
    "qwen3vl_merger",
    ("qwen3vl", "qwen35", "qwen35moe"),
    {
        **_BODY,
        "v.blk.{n}.attn_qkv": "blocks.{n}.attn.qkv",
        "v.blk.{n}.ln2": "layers.{n}.post_attention_layernorm",
        "v.deepstack.{n}.norm": "taps.{n}.norm",
        "v.deepstack.{n}.fc1": "taps.{n}.up_proj",
        "v.deepstack.{n}.fc2": "taps.{n}.down_proj",
        "v.post_ln": "merger.norm",
        "mm.0": "merger.up_proj",
        "mm.2": "merger.down_proj",
    },
    _read_qwen,
    _write_qwen,
    sizes={
        **SIZES,
        "attention.head_count": "num_heads",
        "block_count": "depth",
        "projection_dim": "out_hidden_size",
        "spatial_merge_size": "spatial_merge_size",
    },
    note="llama.cpp resizes images with another filter, within bounds of 8 to 4,096 tokens of its "
    "own, and computes the mergers of the tower with the activation of its layers",
)

FAMILIES: Mapping[str, TowerFamily] = MappingProxyType(
    {
        text: family
        for family in (
            QWEN,
            TowerFamily(
                "gemma3",
                ("gemma3",),
                {
                    **_SIGLIP,
                    "mm.soft_emb_norm": "merger.mean_norm",
                    "mm.input_projection": "merger.proj",
                },
                _read_gemma3,
                _write_gemma3,
                "Gemma3ForConditionalGeneration",
                offsets={"mm.soft_emb_norm.weight": 1.0},
            ),
            TowerFamily(
                "gemma4v",
                ("gemma4",),
                {
                    **_BODY,
                    **_SPLIT,
                    "v.blk.{n}.attn_q_norm": "layers.{n}.self_attn.q_norm",
                    "v.blk.{n}.attn_k_norm": "layers.{n}.self_attn.k_norm",
                    "v.blk.{n}.attn_post_norm": "layers.{n}.post_attention_layernorm",
                    "v.blk.{n}.ln2": "layers.{n}.pre_feedforward_layernorm",
                    "v.blk.{n}.ffn_post_norm": "layers.{n}.post_feedforward_layernorm",
                    "v.blk.{n}.ffn_gate": "layers.{n}.mlp.gate_proj",
                    "v.std_bias": "merger.shift",
                    "v.std_scale": "merger.scale",
                    "mm.input_projection": "merger.proj",
                },
                _read_gemma4,
                _write_gemma4,
                "Gemma4ForConditionalGeneration",
                activation="hidden_activation",
                stated_in="clip.vision.projector_type",
                needs_activation=False,
            ),
            TowerFamily(
                "idefics3",
                ("llama",),
                {**_SIGLIP, "mm.model.fc": "merger.proj"},
                _read_idefics3,
                _write_idefics3,
                "Idefics3ForConditionalGeneration",
            ),
        )
        for text in family.texts
    }
)
"""The kinds of towers, by the architecture of the text model."""
