"""Rules that architectures with gated delta-rule attention share: Qwen 3 Next, 3.5 and 3.6."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rdrr_manifests.models import Manifest

from rdrr_converter.architectures import config as read
from rdrr_converter.architectures import tensors
from rdrr_converter.architectures.base import Block, Keys, TensorRule
from rdrr_converter.architectures.config import Config
from rdrr_converter.architectures.layers import FULL

LINEAR = "linear_attention"

LINEAR_SIZES: Block = {
    key: read.integer(key)
    for key in (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
} | {"linear_norm_mode": "shared"}
"""Fields of the block `architecture` for layers with linear attention."""

LINEAR_DEFAULTS: Mapping[str, object] = {
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}

_GATES = ("silu", "swish")
"""Names of the only output gate of linear attention that transformers computes."""


def silu(config: Config) -> str:
    """Rule: the activation is SiLU, also that behind the convolution, which is no other.

    Raises:
        SourceError: `hidden_act` is another activation.
    """
    if config.get("hidden_act") not in _GATES:
        raise config.fault("hidden_act", " or ".join(_GATES), config.get("hidden_act"))
    return "silu"


def output_gate(config: Config) -> bool:
    """Rule: attention has an output gate, as it always has in transformers.

    Raises:
        SourceError: `attn_output_gate` denies it.
    """
    if config.get("attn_output_gate") not in (None, True):
        raise config.fault("attn_output_gate", "true", config.get("attn_output_gate"))
    return True


def exported(config: Keys, manifest: Manifest, _: Collection[str]) -> Keys:
    """Return the types of layers, none of which has a window, and the sizes of their states."""
    types = manifest.inference.layer_pattern.layer_types
    if types is None:
        return config
    sizes = {
        key: getattr(manifest.architecture, key) for key in LINEAR_SIZES if key in LINEAR_DEFAULTS
    }
    return config | {"layer_types": list(types), **sizes}


def linear_and_full(config: Config) -> tuple[str, ...]:
    """Rule: `layer_types`, else every n-th layer has full attention and the others linear.

    Raises:
        SourceError: `layer_types` is no list of these two types, or linear attention has a gate of
            another kind.
    """
    gate = config.get("output_gate_type")
    if gate is not None and gate not in _GATES:
        raise config.fault("output_gate_type", " or ".join(_GATES), gate)
    stated, period = config.get("layer_types"), config.integer("full_attention_interval")
    if stated is None:
        return tuple(LINEAR if (layer + 1) % period else FULL for layer in range(config.layers))
    known = isinstance(stated, list) and all(kind in (FULL, LINEAR) for kind in stated)
    if not known or len(stated) < config.layers:
        raise config.fault("layer_types", f"{config.layers} of {FULL} or {LINEAR}", stated)
    return tuple(stated[: config.layers])


def of_type(kind: str) -> Callable[[Config], Collection[int]]:
    """Return the rule for the layers of one type."""
    return lambda config: [
        at for at, layer_type in enumerate(linear_and_full(config)) if layer_type == kind
    ]


def linear_attention() -> tuple[TensorRule, ...]:
    """Return the rules for the tensors of layers with linear attention."""
    stem = "model.layers.{layer}.linear_attn"
    return tensors.in_layers(
        of_type(LINEAR),
        tensors.projection("linear_attn.in_proj_qkv", "linear_qkv", "hidden"),
        tensors.projection("linear_attn.in_proj_z", "linear_v", "hidden"),
        tensors.projection("linear_attn.in_proj_b", "linear_heads", "hidden"),
        tensors.projection("linear_attn.in_proj_a", "linear_heads", "hidden"),
        TensorRule(f"{stem}.conv1d.weight", "conv", ("linear_qkv", "one", "taps")),
        TensorRule(f"{stem}.A_log", "other", ("linear_heads",)),
        TensorRule(f"{stem}.dt_bias", "other", ("linear_heads",)),
        tensors.norm("linear_attn.norm", "linear_head"),
        tensors.projection("linear_attn.out_proj", "hidden", "linear_v"),
    )


def gated_attention(required: bool | Callable[[Config], bool]) -> tuple[TensorRule, ...]:
    """Return the rules for attention whose query projection also holds the output gates.

    Args:
        required: Whether the four projections have biases.
    """
    return tensors.in_layers(
        of_type(FULL),
        tensors.projection("self_attn.q_proj", "gated_q", "hidden"),
        tensors.projection("self_attn.k_proj", "kv", "hidden"),
        tensors.projection("self_attn.v_proj", "kv", "hidden"),
        tensors.projection("self_attn.o_proj", "hidden", "q"),
        tensors.bias("self_attn.q_proj", "gated_q", required),
        tensors.bias("self_attn.k_proj", "kv", required),
        tensors.bias("self_attn.v_proj", "kv", required),
        tensors.bias("self_attn.o_proj", "hidden", required),
        *tensors.QUERY_KEY_NORMS,
    )
