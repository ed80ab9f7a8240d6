"""Writing layers with state spaces as llama.cpp has them, the inverse of the reading module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.export._values import OutgoingTensor
from rdrr_converter.gguf.families.states import negative_exponential

Entries = dict[str, Any]
Notes = tuple[str, ...]

_BIASES = (".mamba.in_proj.bias", ".mamba.out_proj.bias")
_EXPERT_BIASES = (".shared_experts.up_proj.bias", ".shared_experts.down_proj.bias")


def plan_state_space(
    package: Package, name: str, gguf_name: str, parts: tuple[LogicalTensor, ...]
) -> OutgoingTensor | None:
    """Plan a tensor of a state space; return None for other tensors.

    Args:
        package: The package.
        name: Hugging Face's name of the tensor.
        gguf_name: llama.cpp's name.
        parts: The tensors of the package that it consists of.

    Raises:
        ConversionError: llama.cpp would not read the tensor.
    """
    first = parts[0]
    if name.endswith(_BIASES):
        raise ConversionError(
            "llama.cpp has no biases in the projections of a state space",
            where=f"{package.where}, {first.name}",
        )
    if name.endswith((*_EXPERT_BIASES, "_latent_proj.bias")):
        raise ConversionError(
            "llama.cpp has no biases in shared experts",
            where=f"{package.where}, {first.name}",
        )
    if name.endswith(".mamba.conv1d.weight"):
        return OutgoingTensor(gguf_name, parts, (first.rows, first.columns), "F32")
    if name.endswith((".mamba.A_log", ".mamba.D")):
        change = negative_exponential if name.endswith("A_log") else None
        return OutgoingTensor(gguf_name, parts, (first.columns, 1), "F32", transform=change)
    if name.endswith(".mamba.norm.weight"):
        groups = package.manifest.architecture.ssm_num_groups or 1
        return OutgoingTensor(gguf_name, parts, (groups, first.columns // groups), "F32")
    return None


def _sizes(heads: int, width: int, groups: int, state: int, kernel: int) -> Entries:
    return {
        "ssm.conv_kernel": kernel,
        "ssm.group_count": groups,
        "ssm.inner_size": heads * width,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
    }


def mamba2(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the sizes of Mamba 2, and that it has neither attention nor feed-forwards."""
    keys = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    sizes = _sizes(*(config[key] for key in keys))
    if config["num_heads"] * config["head_dim"] != 2 * config["hidden_size"]:
        raise ConversionError(
            "llama.cpp needs heads of twice the hidden size in Mamba 2",
            expected=2 * config["hidden_size"],
            found=config["num_heads"] * config["head_dim"],
        )
    return {**sizes, "attention.head_count": 0, "feed_forward_length": 0}, ()


def _prefixed(config: Mapping[str, Any]) -> Entries:
    """Return the sizes under the names of Granite and Falcon-H1."""
    names = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
    return _sizes(*(config[f"mamba_{name}"] for name in names))


def falcon_h1(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the state spaces of Falcon-H1, which are in every layer."""
    return _prefixed(config), ()


def granite(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the state spaces of Granite's hybrids; layers with one have no key-value heads.

    Raises:
        ConversionError: No layer has a state space.
    """
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    if "mamba" not in kinds:
        raise ConversionError(
            "llama.cpp has Granite 4 without state spaces as another architecture",
            hint="export it with `arch` granite, or granitemoeshared if it has experts",
        )
    return {
        **_prefixed(config),
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
    }, ()


def nemotron_h(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State the state spaces of Nemotron-H, and which layers have attention or a feed-forward."""
    keys = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    pattern = config["hybrid_override_pattern"]
    heads, width = config["num_key_value_heads"], config["intermediate_size"]
    return {
        **_sizes(*(config[key] for key in keys)),
        "attention.head_count_kv": [heads if kind == "*" else 0 for kind in pattern],
        "feed_forward_length": [width if kind == "-" else 0 for kind in pattern],
    }, ()


def nemotron_h_moe(config: Mapping[str, Any]) -> tuple[Entries, Notes]:
    """State what Nemotron-H has, and its experts.

    Raises:
        ConversionError: Some of the feed-forwards are dense.
    """
    pattern, width = config["hybrid_override_pattern"], config["moe_intermediate_size"]
    if "-" in pattern:
        raise ConversionError(
            "llama.cpp has no Nemotron-H with dense feed-forwards beside those with experts",
            found=pattern,
            hint="export it `to` safetensors",
        )
    entries, notes = nemotron_h(config)
    latent = config.get("moe_latent_size")
    return {
        **entries,
        "expert_count": config["n_routed_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "feed_forward_length": [width if kind == "E" else 0 for kind in pattern],
        **({} if latent is None else {"moe_latent_size": latent}),
    }, notes


KEYS_OF: Mapping[str, Callable[[Mapping[str, Any]], tuple[Entries, Notes]]] = MappingProxyType(
    {
        "falcon-h1": falcon_h1,
        "mamba2": mamba2,
        "nemotron_h": nemotron_h,
        "nemotron_h_moe": nemotron_h_moe,
    }
)
"""Further metadata and notes, by `general.architecture`; those of Granite need more."""
