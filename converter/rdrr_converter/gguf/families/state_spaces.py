"""How llama.cpp writes layers with state spaces: Mamba 2, Granite 4, Falcon-H1 and Nemotron-H.

llama.cpp stores -exp(A_log) and D as columns, the norm as a matrix with a row for each group, and
convolutions without the dimension of size 1. Layers differ by their key-value heads and by
the widths of their feed-forwards, which are 0 where a layer has none. The factors of Falcon-H1 are
part of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.gguf.metadata import GgufMetadata, Settings

MIXER: Mapping[str, str] = MappingProxyType(
    {
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_dt": "mamba.dt_bias",
        "ssm_a": "mamba.A_log",
        "ssm_d": "mamba.D",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
    }
)
"""Names of the modules of a state space in packages, by llama.cpp's."""

WITHOUT_ENDING = ("mamba.A_log", "mamba.D")
"""Tensors that have neither `.weight` nor `.bias` at the end of either name."""

PER_LAYER = ("attention.head_count_kv", "feed_forward_length")
"""GgufMetadata keys that have a value for each layer."""

STATED = (
    ("mamba_conv_bias", ".mamba.conv1d.bias", True),
    ("mamba_proj_bias", ".mamba.in_proj.bias", True),
)
"""Keys of Granite and Falcon-H1 that follow from the tensors."""

_COLUMNS = (".mamba.A_log", ".mamba.D", ".mamba.norm.weight")


def flattened(tensor: SourceTensor) -> SourceTensor:
    """Return a tensor of a state space with the shape of Hugging Face, or another one unchanged."""
    if not tensor.name.endswith(_COLUMNS) or len(tensor.shape) == 1:
        return tensor
    native = partial(_in_one_row, tensor.native)
    decode = None if tensor.decode is None else _Flattened(tensor)
    return replace(tensor, shape=(prod(tensor.shape),), native=native, decode=decode)


def _in_one_row(native: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(native()).reshape(1, -1)


@dataclass(frozen=True)
class _Flattened:
    tensor: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        return self.tensor.read().reshape(1, -1)[rows, columns]


def _by_layer(read: GgufMetadata, key: str) -> list[int]:
    """Return the values of a key for all layers, which it may state once."""
    value, layers = read.get(key), read.size("block_count")
    return [one or 0 for one in (value if isinstance(value, list) else [value] * layers)]


def _sizes(read: GgufMetadata) -> tuple[int, int, int, int, int]:
    """Return the heads, the width of a head, the groups, the elements of a state and the taps."""
    heads = read.size("ssm.time_step_rank")
    groups, state = read.size("ssm.group_count"), read.size("ssm.state_size")
    return heads, read.size("ssm.inner_size") // heads, groups, state, read.size("ssm.conv_kernel")


def _prefixed(read: GgufMetadata) -> dict[str, Any]:
    """Return the sizes under the names of Granite and Falcon-H1."""
    heads, width, groups, state, kernel = _sizes(read)
    return {
        "mamba_d_conv": kernel,
        "mamba_d_head": width,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_n_heads": heads,
    }


def mamba2(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of Mamba 2, which has no attention."""
    heads, width, groups, state, kernel = _sizes(read)
    return {
        "conv_kernel": kernel,
        "expand": heads * width / read.size("embedding_length"),
        "head_dim": width,
        "intermediate_size": heads * width,
        "layer_norm_epsilon": config.get("rms_norm_eps"),
        "n_groups": groups,
        "num_attention_heads": None,
        "num_heads": heads,
        "num_key_value_heads": None,
        "partial_rotary_factor": None,
        "rms_norm_eps": None,
        "rope_theta": None,
        "state_size": state,
    }


def granite(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the layers of Granite's hybrids, and the sizes of their state spaces."""
    heads = _by_layer(read, "attention.head_count_kv")
    found = _prefixed(read)
    width = found["mamba_n_heads"] * found["mamba_d_head"]
    shared = config.get("shared_expert_intermediate_size")
    return {
        **found,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["attention" if count else "mamba" for count in heads],
        "mamba_expand": width / read.size("embedding_length"),
        "num_key_value_heads": max(heads),
        "num_local_experts": read.get("expert_count") or 0,
        "position_embedding_type": "rope" if read.get("rope.scaling.finetuned") else None,
        "shared_expert_intermediate_size": None,
        "shared_intermediate_size": shared or config.get("intermediate_size"),
    }


def falcon_h1(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of the state spaces of Falcon-H1."""
    del config
    found = _prefixed(read)
    width = found["mamba_n_heads"] * found["mamba_d_head"]
    return {**found, "mamba_d_ssm": width, "mamba_norm_before_gate": False}


def nemotron_h(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the layers of Nemotron-H, and the sizes of their state spaces."""
    heads, width, groups, state, kernel = _sizes(read)
    attention = _by_layer(read, "attention.head_count_kv")
    widths = _by_layer(read, "feed_forward_length")
    return {
        "conv_kernel": kernel,
        "hybrid_override_pattern": "".join(
            "*" if count else "-" if inner else "M"
            for count, inner in zip(attention, widths, strict=True)
        ),
        "intermediate_size": max(widths) or config["hidden_size"],
        "layer_norm_epsilon": config.get("rms_norm_eps"),
        "mamba_head_dim": width,
        "mamba_num_heads": heads,
        "n_groups": groups,
        "num_key_value_heads": max(attention) or config["num_attention_heads"],
        "partial_rotary_factor": None,
        "rms_norm_eps": None,
        "ssm_state_size": state,
    }


def nemotron_h_moe(read: GgufMetadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Nemotron-H has, with experts in place of dense feed-forwards (Nemotron 3)."""
    found, further = nemotron_h(read, config), read.get("nextn_predict_layers") or 0
    layers = read.size("block_count") - further
    return {
        **found,
        "hybrid_override_pattern": found["hybrid_override_pattern"][:layers].replace("-", "E"),
        "moe_latent_size": read.get("moe_latent_size"),
        "moe_shared_expert_intermediate_size": read.size("expert_shared_feed_forward_length"),
        "n_group": read.get("expert_group_count") or 1,
        "n_routed_experts": read.size("expert_count"),
        "norm_topk_prob": bool(read.get("expert_weights_norm")),
        "num_experts": None,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": further,
        "routed_scaling_factor": read.number("expert_weights_scale") or 1.0,
        "shared_expert_intermediate_size": None,
        "topk_group": read.get("expert_group_used_count") or 1,
    }


SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "falcon-h1": falcon_h1,
        "mamba2": mamba2,
        "nemotron_h": nemotron_h,
        "nemotron_h_moe": nemotron_h_moe,
    }
)
"""The keys of the configuration, by `general.architecture`; those of Granite need more."""
