"""What llama.cpp's metadata means for GLM-4, OLMo 2 and 3, EXAONE 4 and Hunyuan.

Each function returns configuration keys of Hugging Face. A flag for biases is false, since no file
states it: a tensor that exists is used in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose, log
from typing import Any, Protocol

from rdrr_converter.architectures.layers import FULL, SLIDING


class Metadata(Protocol):
    """The metadata of one architecture."""

    def get(self, key: str) -> Any:
        """Return a value, or None if the key is missing."""

    def size(self, key: str) -> int:
        """Return a positive integer."""


def glm(read: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotated part of a head, which is all of it if the file does not say."""
    size = config["head_dim"]
    rotated = read.get("rope.dimension_count") or size
    return {"attention_bias": False, "partial_rotary_factor": rotated / size}


def olmo2(read: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes it OLMo 3, if layers have a window: their rope is never scaled."""
    if not read.get("attention.sliding_window"):
        return {}
    found = {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": _layer_types(read),
        "rope_local_base_freq": config["rope_theta"],
        "sliding_window": read.size("attention.sliding_window"),
    }
    scaling = dict(config.get("rope_scaling") or {})
    usual = 0.1 * log(scaling.get("factor") or 1.0) + 1.0
    if "mscale" in scaling and isclose(scaling["mscale"], usual, rel_tol=1e-6):
        # Some files state the factor of the whole, not one on top of what llama.cpp computes.
        scaling["attention_factor"] = scaling.pop("mscale")
        found["rope_scaling"] = scaling
    return found


def exaone4(read: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layer types; without a window, all layers have full attention and rope."""
    del config
    if not read.get("attention.sliding_window"):
        return {"sliding_window": None, "layer_types": [FULL] * read.size("block_count")}
    window = read.size("attention.sliding_window")
    return {"sliding_window": window, "layer_types": _layer_types(read)}


def _layer_types(read: Metadata) -> list[str]:
    """Return the types of the layers, every fourth of which is full if the file does not say."""
    layers, pattern = read.size("block_count"), read.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = pattern if type(pattern) is int and pattern > 0 else 4
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    return [SLIDING if slides else FULL for slides in pattern]
