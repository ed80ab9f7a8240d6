"""Llama in GGUF files, and the families that llama.cpp computes like it: Mistral, Llama 4, Granite.

llama.cpp writes Mistral, Mixtral and Ministral as Llama: experts and windows tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    IGNORED_WINDOW,
    Config,
    Entries,
    Setting,
    fixed,
    period_of,
    size,
)


def _read_llama(read: GgufMetadata, _: Config) -> dict[str, Any]:
    """Tell Mixtral (it has experts) and Mistral (it has a sliding window) from plain Llama.

    A list of the layers with a window makes it Ministral.
    """
    window = read.get("attention.sliding_window")
    slides = read.get("attention.sliding_window_pattern")
    if window and slides is not None and not isinstance(slides, list):
        raise SourceError(
            "the layers with a sliding window cannot be used",
            where=f"{read.where}, attention.sliding_window_pattern",
            expected="a flag for each layer",
            found=slides,
        )
    if window and isinstance(slides, list):
        types = [SLIDING if is_sliding else FULL for is_sliding in slides]
        stated = {"layer_types": types, "sliding_window": window}
        return {"architectures": ["MinistralForCausalLM"], **stated}
    if read.get("expert_count"):
        return {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": read.size("expert_count"),
            "sliding_window": window,
        }
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window} if window else {}


def _write_llama(config: Config) -> Entries:
    """State Mixtral's number of experts, and which layers of Ministral have a window."""
    entries: Entries = {}
    if config.get("sliding_window") and config.get("layer_types"):
        slides = [kind == SLIDING for kind in config["layer_types"]]
        entries["attention.sliding_window_pattern"] = slides
    if config.get("num_local_experts"):
        entries["expert_count"] = config["num_local_experts"]
    return entries


LLAMA = GgufArchitecture(
    "llama",
    "LlamaForCausalLM",
    layer_names.MIXTRAL,
    layer_names.QUERIES_KEYS,
    classes=("MistralForCausalLM", "MixtralForCausalLM", "MinistralForCausalLM"),
    settings=(IGNORED_WINDOW, Setting(_read_llama, _write_llama)),
)


def _read_mistral3(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the scale of the queries by position, which only Ministral 3 has.

    Without it the file is that of a Mistral 3, which computes what Mistral does.
    """
    beta = read.get("attention.temperature_scale")
    scaling = config.get("rope_scaling") or {}
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    stated = {
        **scaling,
        "llama_4_scaling_beta": float(f"{beta:.6g}"),
        "original_max_position_embeddings": read.get("attention.temperature_length")
        or scaling.get("original_max_position_embeddings"),
    }
    all_dim = read.get("rope.scaling.yarn_log_multiplier")
    if all_dim:
        stated |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    return {"rope_scaling": stated, "sliding_window": None}


def _write_mistral3(config: Config) -> Entries:
    """State the scale of the queries by position, and the attention factor as llama.cpp does."""
    scaling = config.get("rope_scaling") or {}
    beta, factor = scaling.get("llama_4_scaling_beta"), scaling.get("attention_factor")
    entries: Entries = {}
    if beta is not None:
        length = scaling["original_max_position_embeddings"]
        entries |= {"attention.temperature_scale": beta, "attention.temperature_length": length}
    if factor == 1.0:
        entries |= {"rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 1.0}
    return entries


MISTRAL3 = GgufArchitecture(
    "mistral3",
    "Ministral3ForCausalLM",
    interleaved=layer_names.QUERIES_KEYS,
    has_betas=True,
    settings=(Setting(_read_mistral3, _write_mistral3),),
)

CHUNK, TEMPERATURE_LENGTH, TEMPERATURE_SCALE, NO_ROPE_INTERVAL = 8192, 8192, 0.1, 4
"""What llama.cpp fixes for Llama 4."""

_WITHOUT_QUERY_NORM = 128
"""Number of experts of the Llama 4 whose queries and keys llama.cpp does not normalize."""


def _read_llama4(read: GgufMetadata, _: Config) -> dict[str, Any]:
    return {
        "interleave_moe_layer_step": read.size("interleave_moe_layer_step"),
        "use_qk_norm": read.size("expert_count") != _WITHOUT_QUERY_NORM,
    }


def _write_llama4(config: Config) -> Entries:
    """State the period of the layers that have experts."""
    layers, sparse = config["num_hidden_layers"], config["moe_layers"]
    others = [layer not in sparse for layer in range(layers)]
    return {"interleave_moe_layer_step": period_of(others, range(1, layers + 1)) or 1}


LLAMA4 = GgufArchitecture(
    "llama4",
    "Llama4ForCausalLM",
    {
        **layer_names.LAYER,
        "ffn_gate_inp": "mlp.router",
        **layer_names.experts("mlp.experts", "mlp.shared_expert"),
    },
    dense_layers=True,
    settings=(
        fixed(
            attention_bias=False,
            attention_chunk_size=CHUNK,
            attn_scale=TEMPERATURE_SCALE,
            attn_temperature_tuning=True,
            floor_scale=TEMPERATURE_LENGTH,
            moe_intermediate_size=None,
            no_rope_layer_interval=NO_ROPE_INTERVAL,
            num_experts=None,
            shared_expert_intermediate_size=None,
        ),
        size("expert_count", "num_local_experts"),
        size("expert_feed_forward_length", "intermediate_size"),
        size("feed_forward_length", "intermediate_size_mlp"),
        Setting(_read_llama4, _write_llama4),
    ),
)

_GRANITE_FACTORS: Mapping[str, str] = MappingProxyType(
    {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "logit_scale": "logits_scaling",
        "residual_scale": "residual_multiplier",
    }
)


def _read_granite(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return Granite's factors, and the sizes of its experts under its own names."""
    # Seven digits undo the rounding to float32.
    keys: dict[str, Any] = {
        ours: float(f"{value:.7g}")
        for theirs, ours in _GRANITE_FACTORS.items()
        if (value := read.number(theirs)) is not None
    }
    shared = config.get("shared_expert_intermediate_size")
    if read.get("expert_count"):
        keys["num_local_experts"] = read.size("expert_count")
    if shared:
        keys["architectures"] = ["GraniteMoeSharedForCausalLM"]
        keys["shared_intermediate_size"] = shared
    return keys


def _write_granite(config: Config) -> Entries:
    """State Granite's factors, and the sizes of its experts."""
    entries: Entries = {key: float(config[ours]) for key, ours in _GRANITE_FACTORS.items()}
    if config.get("num_local_experts"):
        entries["expert_count"] = config["num_local_experts"]
    if config.get("shared_intermediate_size"):
        entries["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
    return entries


FACTORS_OF_GRANITE = Setting(_read_granite, _write_granite)

GRANITE = GgufArchitecture(
    "granite",
    "GraniteForCausalLM",
    interleaved=layer_names.QUERIES_KEYS,
    settings=(FACTORS_OF_GRANITE,),
)
GRANITE_MOE = GgufArchitecture(
    "granitemoe",
    "GraniteMoeForCausalLM",
    layer_names.GRANITE,
    layer_names.QUERIES_KEYS,
    classes=("GraniteMoeSharedForCausalLM",),
    settings=(FACTORS_OF_GRANITE,),
)
