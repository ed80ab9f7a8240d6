"""Qwen in GGUF files: experts, the text models of Qwen VL, and linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.linear_attention import PLAIN_NORM, in_hf_form, plan_state
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.rank_head import RankForm
from rdrr_converter.gguf.settings import (
    IGNORED_WINDOW,
    WITHOUT_BIASES,
    Config,
    Entries,
    Setting,
    fixed,
    period_of,
    rope_sections,
    state_sizes,
)

_LINEAR = "linear_attention"
_PERIODS = range(1, 65)
_WIDTH, _SHARED_WIDTH = "moe_intermediate_size", "shared_expert_intermediate_size"


def _read_qwen2moe(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the widths of the experts; llama.cpp derives those that the first files omit."""
    inner = read.size("feed_forward_length")
    return {
        _WIDTH: inner // read.size("expert_used_count"),
        _SHARED_WIDTH: inner,
        **{key: config[key] for key in (_WIDTH, _SHARED_WIDTH) if key in config},
        "norm_topk_prob": False,
    }


def _read_qwen3moe(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the width of the experts, whose weights are normalized to a sum of 1."""
    return {_WIDTH: _read_qwen2moe(read, config)[_WIDTH], "norm_topk_prob": True}


QWEN3 = GgufArchitecture(
    "qwen3",
    "Qwen3ForCausalLM",
    rank=RankForm({"cls.output": "score"}, "last", has_softmax=True),
)
QWEN2_MOE = GgufArchitecture(
    "qwen2moe",
    "Qwen2MoeForCausalLM",
    layer_names.EXPERTS,
    settings=(Setting(_read_qwen2moe), IGNORED_WINDOW),
)
QWEN3_MOE = GgufArchitecture(
    "qwen3moe",
    "Qwen3MoeForCausalLM",
    layer_names.EXPERTS,
    settings=(Setting(_read_qwen3moe), IGNORED_WINDOW),
)

_SECTIONS = Setting(write=lambda config: {"rope.dimension_sections": rope_sections(config)})

QWEN2_VL = GgufArchitecture(
    "qwen2vl", "Qwen2VLForConditionalGeneration", settings=(_SECTIONS, IGNORED_WINDOW)
)
QWEN3_VL = GgufArchitecture(
    "qwen3vl",
    "Qwen3VLForConditionalGeneration",
    settings=(WITHOUT_BIASES, _SECTIONS, IGNORED_WINDOW),
)


def _read_layers(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the types of the layers."""
    layers = read.size("block_count") - (read.get("nextn_predict_layers") or 0)
    recurrent = read.get("attention.recurrent_layers")
    if not isinstance(recurrent, list) or len(recurrent) < layers:
        period = read.size("full_attention_interval") if read.get("full_attention_interval") else 4
        recurrent = [(layer + 1) % period != 0 for layer in range(layers)]
    return {
        "attention_bias": False,
        "layer_types": [_LINEAR if is_recurrent else FULL for is_recurrent in recurrent[:layers]],
        "num_hidden_layers": layers,
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
    }


def _write_layers(config: Config) -> Entries:
    recurrent = [kind == _LINEAR for kind in config["layer_types"]]
    period = period_of(recurrent, _PERIODS)
    if period is None:
        return {"attention.recurrent_layers": recurrent}
    return {"full_attention_interval": period}


_LINEAR_ATTENTION = (
    state_sizes(
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_conv_kernel_dim",
    ),
    Setting(_read_layers, _write_layers),
)

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "post_attention_norm": "post_attention_layernorm",  # the first name is the one to write
        **layer_names.EXPERTS,
        **layer_names.NEXTN,
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
    }
)
_QWEN35_NAMES = {
    **_NAMES,
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
_STACKS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
        "ssm_in": "linear_attn.in_proj_qkvz",
    }
)
"""Stacks that only some files have."""

QWEN35, QWEN35_MOE = (
    GgufArchitecture(
        name,
        hf_class,
        _QWEN35_NAMES,
        norm_offset=-1.0,
        plain_norms=(PLAIN_NORM,),
        other_forms=_STACKS,
        has_draft_head=True,
        in_hf_form=partial(in_hf_form, alternating=True),
        plan=partial(plan_state, alternating=True),
        settings=(*_LINEAR_ATTENTION, _SECTIONS),
    )
    for name, hf_class in (
        ("qwen35", "Qwen3_5ForCausalLM"),
        ("qwen35moe", "Qwen3_5MoeForCausalLM"),
    )
)
QWEN3_NEXT = GgufArchitecture(
    "qwen3next",
    "Qwen3NextForCausalLM",
    {**_NAMES, "ssm_ba": "linear_attn.in_proj_ba"},
    norm_offset=-1.0,
    plain_norms=(PLAIN_NORM,),
    other_forms=_STACKS,
    has_draft_head=True,
    in_hf_form=in_hf_form,
    plan=plan_state,
    # All its layers have experts in llama.cpp.
    settings=(*_LINEAR_ATTENTION, fixed(decoder_sparse_step=1, norm_topk_prob=True)),
)
