"""The keys of configurations of models with state spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from types import MappingProxyType
from typing import Any

from rdrr_manifests.graph.names import TensorNames
from rdrr_manifests.models import Manifest
from rdrr_manifests.models.state_space import StateSpace

from rdrr_converter.architectures._nemotron_h import EXPERTS
from rdrr_converter.architectures._state_space import FEED_FORWARD, STATE_SPACE, StateSpaceKeys
from rdrr_converter.architectures.falcon_h1 import KEYS as FALCON_H1
from rdrr_converter.architectures.granitemoehybrid import KEYS as GRANITE
from rdrr_converter.architectures.layers import FULL
from rdrr_converter.architectures.mamba2 import KEYS as MAMBA2
from rdrr_converter.architectures.nemotron_h import KEYS as NEMOTRON_H

_KEYS: Mapping[str, StateSpaceKeys] = MappingProxyType(
    {
        "falcon_h1": FALCON_H1,
        "granitemoehybrid": GRANITE,
        "mamba2": MAMBA2,
        "nemotron_h": NEMOTRON_H,
    }
)
"""The keys of the state space, by the name of the architecture."""

_LACKING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mamba2": ("intermediate_size", "num_attention_heads", "num_key_value_heads", "rope_theta"),
        "nemotron_h": ("hidden_act", "rope_theta"),
    }
)
"""Usual keys that configurations of an architecture do not have."""


def _granite(manifest: Manifest) -> dict[str, Any]:
    """Return the keys of Granite's hybrids, whose layers may also have no experts."""
    sizes, moe, blocks = manifest.architecture, manifest.moe_config, manifest.inference
    kinds = blocks.layer_pattern.layer_types or ("full_attention",) * sizes.num_layers
    plain = blocks.rope.unrotated_layers or ()
    found: dict[str, Any] = {
        "layer_types": ["mamba" if one == STATE_SPACE else "attention" for one in kinds],
        "position_embedding_type": None if plain else "rope",
    }
    if moe is None:
        width = sizes.intermediate_size
        return found | {"num_local_experts": 0, "shared_intermediate_size": width}
    return found | {"shared_intermediate_size": moe.shared_expert_intermediate_size}


def _falcon(manifest: Manifest) -> dict[str, Any]:
    """Return the factors of Falcon-H1; those on inputs are part of the others."""
    sizes, blocks = manifest.architecture, manifest.inference
    block, output = blocks.state_space or StateSpace(), blocks.output
    inputs = block.input_multipliers or (1.0, 1.0, 1.0)
    heads, dim = sizes.ssm_num_heads or 0, sizes.ssm_head_dim or 0
    return {
        "attention_out_multiplier": block.attention_multiplier,
        "embedding_multiplier": output.embedding_scale or 1.0,
        "key_multiplier": sqrt(sizes.head_dim / blocks.attention.query_pre_attn_scalar),
        "lm_head_multiplier": output.logit_input_scale,
        "mamba_d_ssm": heads * dim,
        "mamba_norm_before_gate": block.norm_before_gate,
        "mlp_multipliers": [blocks.ffn.gate_multiplier, blocks.ffn.output_multiplier],
        "query_pre_attn_scalar": None,
        "ssm_multipliers": [block.gate_multiplier, *inputs, block.step_multiplier],
        "ssm_out_multiplier": block.output_multiplier,
    }


def _nemotron(manifest: Manifest) -> dict[str, Any]:
    """Return the types of the layers of Nemotron-H, for older and newer readers."""
    kinds = manifest.inference.layer_pattern.layer_types
    if kinds is None:
        kinds = (FULL,) * manifest.architecture.num_layers
    names, moe = TensorNames(manifest.tensors), manifest.moe_config
    kinds = tuple(
        one if names.experts(layer) is None else EXPERTS for layer, one in enumerate(kinds)
    )
    letters = {STATE_SPACE: "M", FULL: "*", FEED_FORWARD: "-", EXPERTS: "E"}
    words = {STATE_SPACE: "mamba", FULL: "attention", FEED_FORWARD: "mlp", EXPERTS: "moe"}
    found = {
        "hybrid_override_pattern": "".join(letters.get(one, "?") for one in kinds),
        "layers_block_type": [words.get(one, one) for one in kinds],
        "mlp_hidden_act": manifest.inference.ffn.activation,
    }
    if moe is None:
        return found
    return found | {
        "moe_latent_size": moe.expert_latent_size,
        "moe_shared_expert_intermediate_size": moe.shared_expert_intermediate_size,
        "n_shared_experts": 1,
    }


_FURTHER: Mapping[str, Callable[[Manifest], dict[str, Any]]] = MappingProxyType(
    {"falcon_h1": _falcon, "granitemoehybrid": _granite, "nemotron_h": _nemotron}
)
"""Further keys of architectures."""


def with_state_space(name: str, config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a configuration with the keys of the state space of its layers, if they have one.

    Args:
        name: Name of the architecture.
        config: The configuration so far.
        manifest: The manifest.
    """
    lacking, further = _LACKING.get(name, ()), _FURTHER.get(name)
    found = {key: value for key, value in config.items() if key not in lacking}
    return found | _state_space(name, manifest) | ({} if further is None else further(manifest))


def _state_space(name: str, manifest: Manifest) -> dict[str, Any]:
    """Return the keys of the state space; none if no layer has one."""
    keys, sizes, block = _KEYS.get(name), manifest.architecture, manifest.inference.state_space
    if keys is None or block is None or sizes.ssm_num_heads is None or sizes.ssm_head_dim is None:
        return {}
    width = sizes.ssm_num_heads * sizes.ssm_head_dim
    found: dict[str, Any] = {
        keys.heads: sizes.ssm_num_heads,
        keys.head_dim: sizes.ssm_head_dim,
        keys.groups: sizes.ssm_num_groups,
        keys.state: sizes.ssm_state_size,
        keys.kernel: sizes.ssm_conv_kernel_dim,
    }
    if block.least_step or block.most_step is not None:  # JSON has no infinity
        most = {"__float__": "Infinity"} if block.most_step is None else block.most_step
        found["time_step_limit"] = [block.least_step, most]
    if keys.expand and not keys.width:
        factor = width / sizes.hidden_size
        found[keys.expand] = int(factor) if factor == int(factor) else factor
    return found
