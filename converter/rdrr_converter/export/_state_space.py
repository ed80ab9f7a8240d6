"""The keys of configurations of models with state spaces."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures._state_space import StateSpaceKeys
from rdrr_converter.architectures.mamba2 import KEYS as MAMBA2

_KEYS: Mapping[str, StateSpaceKeys] = MappingProxyType({"mamba2": MAMBA2})
"""The keys of the state space, by the name of the architecture."""

_LACKING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"mamba2": ("intermediate_size", "num_attention_heads", "num_key_value_heads", "rope_theta")}
)
"""Usual keys that configurations of an architecture do not have."""


def with_state_space(name: str, config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return a configuration with the keys of the state space of its layers, if they have one.

    Args:
        name: Name of the architecture.
        config: The configuration so far.
        manifest: The manifest.
    """
    keys, sizes, block = _KEYS.get(name), manifest.architecture, manifest.inference.state_space
    if keys is None or block is None or sizes.ssm_num_heads is None or sizes.ssm_head_dim is None:
        return config
    width = sizes.ssm_num_heads * sizes.ssm_head_dim
    stated: dict[str, Any] = {
        keys.heads: sizes.ssm_num_heads,
        keys.head_dim: sizes.ssm_head_dim,
        keys.groups: sizes.ssm_num_groups,
        keys.state: sizes.ssm_state_size,
        keys.kernel: sizes.ssm_conv_kernel_dim,
    }
    if block.least_step or block.most_step is not None:  # JSON has no infinity
        most = {"__float__": "Infinity"} if block.most_step is None else block.most_step
        stated["time_step_limit"] = [block.least_step, most]
    if keys.expand:
        factor = width / sizes.hidden_size
        stated[keys.expand] = int(factor) if factor == int(factor) else factor
    lacking = _LACKING.get(name, ())
    return {key: value for key, value in config.items() if key not in lacking} | stated
