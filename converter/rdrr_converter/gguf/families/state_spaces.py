"""Layers with state spaces in GGUF files: Mamba 2, Granite 4, Falcon-H1 and Nemotron-H.

llama.cpp stores -exp(A_log) and D as columns, the norm as a matrix with a row for each group, and
convolutions without the dimension of size 1. Layers differ by their key-value heads and by
the widths of their feed-forwards, which are 0 where a layer has none. The factors of Falcon-H1 are
part of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rdrr_format.errors import ConversionError
from rdrr_manifests.logical import LogicalTensor
from rdrr_manifests.package import Package

from rdrr_converter.checkpoint.outgoing import OutgoingTensor
from rdrr_converter.checkpoint.source import F32Array, SourceTensor
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.linear_attention import in_hf_form, negative_exponential
from rdrr_converter.gguf.families.llama import FACTORS_OF_GRANITE
from rdrr_converter.gguf.families.mixtures import FURTHER_LAYERS
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    Config,
    Entries,
    Setting,
    fixed,
    flag,
    number,
    size,
    state_sizes,
    value,
)

_MIXER: Mapping[str, str] = MappingProxyType(
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

_NAMES = {**layer_names.LAYER, **_MIXER}
_WHOLE = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D"}
"""Tensors that have neither `.weight` nor `.bias` at the end of either name."""

_PER_LAYER = ("attention.head_count_kv", "feed_forward_length")

_COLUMNS = (".mamba.A_log", ".mamba.D", ".mamba.norm.weight")
_BIASES = (".mamba.in_proj.bias", ".mamba.out_proj.bias")

_CONV_BIAS = ("use_conv_bias", ".mamba.conv1d.bias", True)
_BIASES_OF_PREFIXED = (
    ("mamba_conv_bias", ".mamba.conv1d.bias", True),
    ("mamba_proj_bias", ".mamba.in_proj.bias", True),
)


def _in_hf_form(tensors: Iterable[SourceTensor], config: Config) -> Iterator[SourceTensor]:
    """Yield the tensors of a model in the form of Hugging Face."""
    return in_hf_form(map(_flattened, tensors), config)


def _flattened(tensor: SourceTensor) -> SourceTensor:
    """Return a tensor of a state space with the shape of Hugging Face, or another one unchanged."""
    if not tensor.name.endswith(_COLUMNS) or len(tensor.shape) == 1:
        return tensor
    native = partial(_in_one_row, tensor.native)
    decode = None if tensor.decode is None else _OneRow(tensor)
    return replace(tensor, shape=(prod(tensor.shape),), native=native, decode=decode)


def _in_one_row(native: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(native()).reshape(1, -1)


@dataclass(frozen=True)
class _OneRow:
    tensor: SourceTensor

    def __call__(self, rows: slice, columns: slice) -> F32Array:
        return self.tensor.read().reshape(1, -1)[rows, columns]


def _plan(
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
    if name.endswith(".mamba.conv1d.weight"):
        return OutgoingTensor(gguf_name, parts, (first.rows, first.columns), "F32")
    if name.endswith((".mamba.A_log", ".mamba.D")):
        change = negative_exponential if name.endswith("A_log") else None
        return OutgoingTensor(gguf_name, parts, (first.columns, 1), "F32", transform=change)
    if name.endswith(".mamba.norm.weight"):
        groups = package.manifest.architecture.ssm_num_groups or 1
        return OutgoingTensor(gguf_name, parts, (groups, first.columns // groups), "F32")
    return None


def _by_layer(read: GgufMetadata, key: str) -> list[int]:
    """Return the values of a key for all layers, which it may state once."""
    value, layers = read.get(key), read.size("block_count")
    return [entry or 0 for entry in (value if isinstance(value, list) else [value] * layers)]


def _width(read: GgufMetadata) -> int:
    """Return the elements of all heads of a state space."""
    heads = read.size("ssm.time_step_rank")
    return read.size("ssm.inner_size") // heads * heads


_NO_RMS_EPS = Setting(
    lambda _, config: {"layer_norm_epsilon": config.get("rms_norm_eps"), "rms_norm_eps": None}
)
"""The epsilon, which is not under the usual key."""


def _read_mamba2(read: GgufMetadata, _: Config) -> dict[str, Any]:
    width = _width(read)
    return {"expand": width / read.size("embedding_length"), "intermediate_size": width}


def _write_mamba2(config: Config) -> Entries:
    """State that Mamba 2 has neither attention nor feed-forwards.

    Raises:
        ConversionError: The heads do not have the usual width.
    """
    if config["num_heads"] * config["head_dim"] != 2 * config["hidden_size"]:
        raise ConversionError(
            "llama.cpp needs heads of twice the hidden size in Mamba 2",
            expected=2 * config["hidden_size"],
            found=config["num_heads"] * config["head_dim"],
        )
    return {"attention.head_count": 0, "feed_forward_length": 0}


MAMBA2 = GgufArchitecture(
    "mamba2",
    "Mamba2ForCausalLM",
    _NAMES,
    flags=(("use_bias", ".mamba.in_proj.bias", True), _CONV_BIAS),
    has_attention=False,
    whole=_WHOLE,
    in_hf_form=_in_hf_form,
    plan=_plan,
    settings=(
        fixed(
            num_attention_heads=None,
            num_key_value_heads=None,
            partial_rotary_factor=None,
            rope_theta=None,
        ),
        state_sizes("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
        Setting(_read_mamba2, _write_mamba2),
        _NO_RMS_EPS,
    ),
)

_PREFIXED = state_sizes(
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"
)


def _read_granite(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the types of the layers of Granite's hybrids."""
    heads = _by_layer(read, "attention.head_count_kv")
    shared = config.get("shared_expert_intermediate_size")
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["attention" if count else "mamba" for count in heads],
        "mamba_expand": _width(read) / read.size("embedding_length"),
        "num_key_value_heads": max(heads),
        "num_local_experts": read.get("expert_count") or 0,
        "position_embedding_type": "rope" if read.get("rope.scaling.finetuned") else None,
        "shared_expert_intermediate_size": None,
        "shared_intermediate_size": shared or config.get("intermediate_size"),
    }


def _write_granite(config: Config) -> Entries:
    """State which layers have attention; layers with a state space have no key-value heads.

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
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
    }


GRANITE_HYBRID = GgufArchitecture(
    "granitehybrid",
    "GraniteMoeHybridForCausalLM",
    {**layer_names.GRANITE, **_MIXER},
    layer_names.QUERIES_KEYS,
    per_layer=_PER_LAYER,
    whole=_WHOLE,
    flags=_BIASES_OF_PREFIXED,
    in_hf_form=_in_hf_form,
    plan=_plan,
    settings=(FACTORS_OF_GRANITE, _PREFIXED, Setting(_read_granite, _write_granite)),
)

FALCON_H1 = GgufArchitecture(
    "falcon-h1",
    "FalconH1ForCausalLM",
    _NAMES,
    flags=(
        *_BIASES_OF_PREFIXED,
        ("attention_bias", ".q_proj.bias", True),
        ("mamba_rms_norm", ".mamba.norm.weight", True),
        ("mlp_bias", ".mlp.up_proj.bias", True),
        ("projectors_bias", ".mamba.out_proj.bias", True),
    ),
    whole={**_WHOLE, "ffn_norm": "post_attention_layernorm.weight"},
    factors_in_weights=True,
    in_hf_form=_in_hf_form,
    plan=_plan,
    settings=(
        _PREFIXED,
        fixed(mamba_norm_before_gate=False),
        Setting(lambda read, _: {"mamba_d_ssm": _width(read)}),
    ),
)


def _read_nemotron(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the types of the layers of Nemotron-H."""
    attention = _by_layer(read, "attention.head_count_kv")
    widths = _by_layer(read, "feed_forward_length")
    return {
        "hybrid_override_pattern": "".join(
            "*" if count else "-" if inner else "M"
            for count, inner in zip(attention, widths, strict=True)
        ),
        "intermediate_size": max(widths) or config["hidden_size"],
        "num_key_value_heads": max(attention) or config["num_attention_heads"],
        "partial_rotary_factor": None,
    }


def _write_nemotron(config: Config) -> Entries:
    pattern = config["hybrid_override_pattern"]
    heads, width = config["num_key_value_heads"], config["intermediate_size"]
    return {
        "attention.head_count_kv": [heads if kind == "*" else 0 for kind in pattern],
        "feed_forward_length": [width if kind == "-" else 0 for kind in pattern],
    }


_NEMOTRON = (
    state_sizes("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    Setting(_read_nemotron, _write_nemotron),
    _NO_RMS_EPS,
)

NEMOTRON_H = GgufArchitecture(
    "nemotron_h",
    "NemotronHForCausalLM",
    _NAMES,
    layer_names.QUERIES_KEYS,
    per_layer=_PER_LAYER,
    whole=_WHOLE,
    flags=(
        ("mlp_bias", ".mlp.up_proj.bias", True),
        ("use_bias", ".mamba.in_proj.bias", True),
        _CONV_BIAS,
    ),
    has_experts=False,
    in_hf_form=_in_hf_form,
    plan=_plan,
    settings=_NEMOTRON,
)


def _read_experts(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the types of the layers, with experts in place of dense feed-forwards."""
    pattern = _read_nemotron(read, config)["hybrid_override_pattern"]
    layers = read.size("block_count") - (read.get("nextn_predict_layers") or 0)
    return {"hybrid_override_pattern": pattern[:layers].replace("-", "E")}


def _write_experts(config: Config) -> Entries:
    pattern, width = config["hybrid_override_pattern"], config["moe_intermediate_size"]
    return {"feed_forward_length": [width if kind == "E" else 0 for kind in pattern]}


def _check_experts(config: Config) -> Entries:
    """Refuse dense feed-forwards.

    Raises:
        ConversionError: Some of the feed-forwards are dense.
    """
    pattern = config["hybrid_override_pattern"]
    if "-" in pattern:
        raise ConversionError(
            "llama.cpp has no Nemotron-H with dense feed-forwards beside those with experts",
            found=pattern,
            hint="export it `to` safetensors",
        )
    return {}


# Nemotron 3.
NEMOTRON_H_MOE = GgufArchitecture(
    "nemotron_h_moe",
    "NemotronHForCausalLM",
    {
        **layer_names.SHARED_EXPERTS,
        **_MIXER,
        "ffn_latent_down": "mlp.fc1_latent_proj",
        "ffn_latent_up": "mlp.fc2_latent_proj",
    },
    layer_names.QUERIES_KEYS,
    per_layer=_PER_LAYER,
    whole=_WHOLE,
    flags=(_CONV_BIAS,),
    has_experts=True,
    in_hf_form=_in_hf_form,
    plan=_plan,
    settings=(
        Setting(write=_check_experts),
        *_NEMOTRON,
        fixed(num_experts=None, shared_expert_intermediate_size=None),
        size("expert_count", "n_routed_experts"),
        value("expert_group_count", "n_group", 1),
        value("expert_group_used_count", "topk_group", 1),
        Setting(write=lambda _: {"expert_shared_count": 1}),
        size("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"),
        flag("expert_weights_norm", "norm_topk_prob"),
        number("expert_weights_scale", "routed_scaling_factor", 1.0),
        Setting(_read_experts, _write_experts),
        FURTHER_LAYERS,
        value("moe_latent_size", "moe_latent_size"),
    ),
)
