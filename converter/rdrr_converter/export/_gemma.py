"""The configuration keys of Gemma 4 and Gemma 3n, in addition to those of other architectures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures.layers import FULL, SLIDING

Config = dict[str, Any]

_UNUSED = ("query_pre_attn_scalar", "partial_rotary_factor")
"""Keys of other architectures."""


def of_gemma(name: str, config: Config, manifest: Manifest, names: Collection[str]) -> Config:
    """Return a configuration with the keys of the architecture; others are left as they are.

    Args:
        name: Name of the architecture.
        config: The configuration so far.
        manifest: The manifest of the package.
        names: Names of its tensors.
    """
    more = _KEYS.get(name)
    if more is None:
        return config
    found = config | more(config, manifest, names)
    return {key: value for key, value in found.items() if key not in _UNUSED}


def _gemma4(config: Config, manifest: Manifest, names: Collection[str]) -> Config:
    sizes, rope, moe = manifest.architecture, manifest.inference.rope, manifest.moe_config
    full: Config = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    if rope.rope_frequency_base_dim is not None:
        full |= {"rope_type": "proportional", "partial_rotary_factor": rope.partial_rotary_factor}
    local = {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq", None)}
    with_keys = sum(name.endswith(".self_attn.k_proj.weight") for name in names)
    with_values = sum(name.endswith(".self_attn.v_proj.weight") for name in names)
    found = {
        **_layer_inputs(manifest),
        "attention_k_eq_v": with_values < with_keys,
        "enable_moe_block": moe is not None,
        "global_head_dim": sizes.global_head_dim or sizes.head_dim,
        "layer_types": config.get("layer_types") or _uniform(config),
        "num_global_key_value_heads": sizes.num_global_key_value_heads,
        "rope_parameters": {FULL: full, SLIDING: local},
        "use_double_wide_mlp": manifest.inference.ffn.use_double_wide_mlp,
    }
    if moe is not None:
        found |= {
            "moe_intermediate_size": moe.expert_intermediate_size,
            "num_experts": moe.num_experts,
            "top_k_experts": moe.num_experts_per_token,
        }
    return found


def _gemma3n(config: Config, manifest: Manifest, names: Collection[str]) -> Config:
    del names
    sizes, blocks = manifest.architecture, manifest.inference
    sparsity = blocks.ffn.activation_sparsity or (0.0,) * sizes.num_layers
    return {
        **_layer_inputs(manifest),
        "activation_sparsity_pattern": list(sparsity),
        "altup_active_idx": sizes.altup_active_index,
        "altup_correct_scale": blocks.layer_pattern.altup_correct_scale,
        "altup_num_inputs": sizes.altup_num_inputs,
        "laurel_rank": sizes.laurel_rank,
        "layer_types": config.get("layer_types") or _uniform(config),
    }


def _layer_inputs(manifest: Manifest) -> Config:
    sizes = manifest.architecture
    return {
        "hidden_size_per_layer_input": sizes.hidden_size_per_layer_input or 0,
        "num_kv_shared_layers": sizes.num_kv_shared_layers or 0,
        "vocab_size_per_layer_input": sizes.vocab_size_per_layer_input or 0,
    }


def _uniform(config: Config) -> list[str]:
    """Return the types of layers that all have the same one."""
    kind = SLIDING if config.get("sliding_window") else FULL
    return [kind] * int(config["num_hidden_layers"])


_KEYS: Mapping[str, Callable[[Config, Manifest, Collection[str]], Config]] = MappingProxyType(
    {"gemma4": _gemma4, "gemma4_unified": _gemma4, "gemma3n": _gemma3n}
)
