"""What llama.cpp's metadata means for GLM-4, OLMo 2 and 3, EXAONE 4 and Hunyuan.

Each function returns configuration keys of Hugging Face. A flag for biases is false, since no file
states it: a tensor that exists is used in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose, log
from typing import Any

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf.metadata import GgufMetadata

_OLMO_EPS = 1e-5


def glm(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotated part of a head, which is all of it if the file does not say."""
    size = config["head_dim"]
    rotated = read.get("rope.dimension_count") or size
    return {"attention_bias": False, "partial_rotary_factor": rotated / size}


def olmo2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes it OLMo 3, if layers have a window: their rope is never scaled."""
    if not read.get("attention.sliding_window"):
        return {}
    found = {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": _layer_types(read),
        "rope_local_base_freq": config["rope_theta"],
        "sliding_window": read.size("attention.sliding_window"),
    }
    scaling = config.get("rope_scaling") or {}
    usual = 0.1 * log(scaling.get("factor") or 1.0) + 1.0
    if isclose(scaling.get("attention_factor") or 1.0, usual**2, rel_tol=1e-6):
        # Some files state the whole factor instead of one on top of what llama.cpp computes.
        found["rope_scaling"] = {**scaling, "attention_factor": usual}
    return found


def olmo(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limit of the projections, and no epsilon, which is no key of OLMo's.

    Another epsilon than its own is refused as unread.
    """
    is_usual = isclose(config["rms_norm_eps"] or _OLMO_EPS, _OLMO_EPS, rel_tol=1e-6)
    limit = {"clip_qkv": read.get("attention.clamp_kqv") or None}
    return limit | ({"rms_norm_eps": None} if is_usual else {})


def mistral3(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scale of the queries by position, which only Ministral 3 has.

    Without it the file is that of a Mistral 3, which computes what Mistral does.
    """
    beta = read.get("attention.temperature_scale")
    scaling = config.get("rope_scaling") or {}
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    stated = {
        **scaling,
        "llama_4_scaling_beta": float(f"{beta:.6g}"),
        "original_max_position_embeddings": read.get("attention.temperature_length")
        or scaling.get("original_max_position_embeddings"),
    }
    all_dim = read.get("rope.scaling.yarn_log_multiplier")
    if all_dim:
        stated |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    return {"rope_scaling": stated, "sliding_window": None}


def exaone4(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer types; without a window, all layers have full attention and rope."""
    del config
    if not read.get("attention.sliding_window"):
        return {"sliding_window": None, "layer_types": [FULL] * read.size("block_count")}
    window = read.size("attention.sliding_window")
    return {"sliding_window": window, "layer_types": _layer_types(read)}


def _layer_types(read: GgufMetadata) -> list[str]:
    """Return the types of the layers, every fourth of which is full if the file does not say."""
    layers, pattern = read.size("block_count"), read.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = pattern if type(pattern) is int and pattern > 0 else 4
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    return [SLIDING if slides else FULL for slides in pattern]
