"""The keys of configurations of models with recurrent states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdrr_manifests.models import Manifest

_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


def with_states(
    config: dict[str, Any], manifest: Manifest, known: Mapping[str, object]
) -> dict[str, Any]:
    """Return a configuration with the layer types and sizes of layers with states.

    Args:
        config: The configuration so far.
        manifest: The manifest.
        known: Keys of the architecture that have a default.
    """
    sizes, types = manifest.architecture, manifest.inference.layer_pattern.layer_types
    if not {"full_attention_interval", "conv_L_cache"} & known.keys() or types is None:
        return config
    found = config | {"layer_types": list(types)}
    if "conv_L_cache" not in known:
        return found | {key: getattr(sizes, key) for key in _SIZES}
    found["norm_eps"] = found.pop("rms_norm_eps")
    del found["hidden_act"], found["head_dim"]
    found["conv_L_cache"] = sizes.linear_conv_kernel_dim
    if "block_auto_adjust_ff_dim" in known:
        found["block_auto_adjust_ff_dim"] = False
    return found
