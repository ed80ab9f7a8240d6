"""LFM2 in GGUF files: layers without key-value heads have a short convolution."""

from __future__ import annotations

from typing import Any

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.linear_attention import in_hf_form, plan_state
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import Config, Entries, Setting, fixed, size, value

_CONVOLUTION = "conv"

_NAMES = {
    **layer_names.SHARED_EXPERTS,
    **{f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")},
}
_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.norm",
    "output": "lm_head",
}


def _read_layers(read: GgufMetadata, config: Config) -> dict[str, Any]:
    heads, layers = read.get("attention.head_count_kv"), read.size("block_count")
    by_layer = heads if isinstance(heads, list) else [heads] * layers
    return {
        "block_auto_adjust_ff_dim": False,
        "conv_bias": False,
        "layer_types": [FULL if count else _CONVOLUTION for count in by_layer],
        "norm_eps": config.get("rms_norm_eps"),
        "num_key_value_heads": max((count or 0 for count in by_layer), default=0),
        "rms_norm_eps": None,
    }


def _write_layers(config: Config) -> Entries:
    head, count = config["hidden_size"] // config["num_attention_heads"], "num_key_value_heads"
    return {
        "attention.head_count_kv": [
            config[count] if kind == FULL else 0 for kind in config["layer_types"]
        ],
        "attention.key_length": head,
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "attention.value_length": head,
        "rope.dimension_count": head,
    }


_LAYERS = (Setting(_read_layers, _write_layers), size("shortconv.l_cache", "conv_L_cache"))

LFM2 = GgufArchitecture(
    "lfm2",
    "Lfm2ForCausalLM",
    _NAMES,
    outside=_OUTSIDE,
    biases=False,
    per_layer=("attention.head_count_kv",),
    in_hf_form=in_hf_form,
    plan=plan_state,
    settings=_LAYERS,
)


_SIGMOID = 2
"""The value of `expert_gating_func` for sigmoids."""


def _read_scale(read: GgufMetadata, _: Config) -> dict[str, Any]:
    read.accept("expert_gating_func", _SIGMOID)
    return {"routed_scaling_factor": read.get("expert_weights_scale") or 1.0}


# The first layers are dense; the scores of experts are sigmoids.
LFM2_MOE = GgufArchitecture(
    "lfm2moe",
    "Lfm2MoeForCausalLM",
    _NAMES,
    outside=_OUTSIDE,
    biases=False,
    per_layer=("attention.head_count_kv",),
    dense_layers=True,
    flags=(("use_expert_bias", ".e_score_correction_bias", True),),
    in_hf_form=in_hf_form,
    plan=plan_state,
    settings=(
        *_LAYERS,
        fixed(block_auto_adjust_ff_dim=None, norm_topk_prob=True),
        Setting(_read_scale, lambda _: {"expert_gating_func": _SIGMOID}),
        value("leading_dense_block_count", "num_dense_layers", 0),
    ),
)
