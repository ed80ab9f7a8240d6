"""What llama.cpp's metadata means for Gemma 4 and Gemma 3n, and its names of their tensors.

Global layers of Gemma 4 rotate a part of their pairs. llama.cpp writes that as divisors of the
frequencies which are 1 for these pairs and huge for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf.metadata import GgufMetadata

HUGE = 1e20
"""Divisors above this stop the rotation of a pair."""

_LOCAL_THETA = 10000.0
_SOFTCAP = 30.0

OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        "altup_proj": "model.altup_projections",
        "altup_unembd_proj": "model.altup_unembed_projections",
    }
)
LAYER: Mapping[str, str] = MappingProxyType(
    {
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "layer_output_scale": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_up_exps": "experts.gate_up_proj",
        "ffn_gate_exps": "experts.gate_proj",
        "ffn_up_exps": "experts.up_proj",
        "ffn_down_exps": "experts.down_proj",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale": "altup.correct_output_scale",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "laurel_l": "laurel.linear_left",
        "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm",
    }
)


def gemma4(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of both kinds of layers, and the sizes of the layers' inputs."""
    types = _types(read)
    heads, inner = read.get("attention.head_count_kv"), read.get("feed_forward_length")
    found: dict[str, Any] = {
        **_layer_inputs(read, config),
        "global_head_dim": read.size("attention.key_length"),
        "head_dim": read.size("attention.key_length_swa"),
        "layer_types": types,
        "rope_parameters": _ropes(read, config),
        "sliding_window": read.get("attention.sliding_window"),
    }
    if isinstance(heads, list):
        by_type = dict(zip(types, heads, strict=False))
        found["num_key_value_heads"] = by_type.get(SLIDING)
        found["num_global_key_value_heads"] = by_type.get(FULL)
    if isinstance(inner, list):
        found["intermediate_size"] = inner[0]
        found["use_double_wide_mlp"] = len(set(inner)) > 1
    if read.get("expert_count"):
        found["enable_moe_block"] = True
        found["top_k_experts"] = config.get("num_experts_per_tok")
        found["num_experts_per_tok"] = None
    return found


def gemma3n(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the streams, the shares of zeros, and the sizes of the layers' inputs."""
    scales = read.get("activation_sparsity_scale") or []
    # Six digits undo the rounding to float32.
    shares = [float(f"{NormalDist().cdf(one):.6g}") if one > -1e30 else 0.0 for one in scales]
    return {
        **_layer_inputs(read, config),
        "activation_sparsity_pattern": shares or None,
        "altup_active_idx": read.get("altup.active_idx") or 0,
        "altup_num_inputs": read.size("altup.num_inputs"),
        "final_logit_softcapping": config.get("final_logit_softcapping") or _SOFTCAP,
        "layer_types": _types(read),
        "rope_local_base_freq": read.number("rope.freq_base_swa") or _LOCAL_THETA,
        "sliding_window": read.get("attention.sliding_window"),
    }


def proportional(divisors: npt.NDArray[np.float64], where: object) -> float:
    """Return the part of the pairs that is rotated, given the divisors of the frequencies.

    Raises:
        ConversionError: The divisors are not 1 for the first pairs and huge for the others.
    """
    rotated = int((divisors < HUGE).sum())
    if not np.allclose(divisors[:rotated], 1.0) or (divisors[rotated:] < HUGE).any():
        raise ConversionError(
            "unknown divisors of the rope frequencies",
            where=where,
            expected="1 for the rotated pairs, and more than 1e20 for the others",
            found=np.array2string(divisors, precision=4, threshold=8),
        )
    return rotated / divisors.size


def with_part(config: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Return the rope of Gemma 4 whose global layers rotate a part of their pairs."""
    ropes = config["rope_parameters"]
    full = {**ropes[FULL], "rope_type": "proportional", "partial_rotary_factor": part}
    return {"rope_parameters": {**ropes, FULL: full}}


def shares_values(names: Iterable[str]) -> bool:
    """Return whether some layers have a projection of keys and none of values."""
    known = list(names)
    keys, values = (
        sum(name.endswith(f".self_attn.{part}_proj.weight") for name in known) for part in "kv"
    )
    return values < keys


def _types(read: GgufMetadata) -> list[str]:
    layers, slides = read.size("block_count"), read.get("attention.sliding_window_pattern")
    if not isinstance(slides, list) or len(slides) < layers:
        raise ConversionError(
            "the layers with a sliding window are not stated",
            expected=f"attention.sliding_window_pattern with {layers} flags",
            found=slides,
        )
    return [SLIDING if one else FULL for one in slides[:layers]]


def _ropes(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    local = read.number("rope.freq_base_swa") or _LOCAL_THETA
    return {
        FULL: {"rope_type": "default", "rope_theta": config["rope_theta"]},
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


def _layer_inputs(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size_per_layer_input": read.get("embedding_length_per_layer_input") or 0,
        "num_kv_shared_layers": read.get("attention.shared_kv_layers") or 0,
        "vocab_size_per_layer_input": config["vocab_size"],
    }
