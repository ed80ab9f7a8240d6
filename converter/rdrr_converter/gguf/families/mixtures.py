"""Mixtures of experts in GGUF files: GLM 4.5, dots, EXAONE, Ernie, MiniMax, Hunyuan and gpt-oss.

Keys of the configuration that have another meaning here than for most architectures are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.families.post_norms import WINDOWS_OF_EXAONE
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    ROTATED_PART,
    Config,
    Entries,
    Notes,
    Setting,
    fixed,
    flag,
    number,
    size,
    value,
)

_SCORES: Mapping[int, str] = MappingProxyType({1: "softmax", 2: "sigmoid"})
"""Functions of the router, by their numbers in `expert_gating_func`."""


def read_scores(read: GgufMetadata, default: str) -> Any:
    """Return the function of the router."""
    gating = read.get("expert_gating_func")
    return _SCORES.get(gating, gating) if gating else default


def write_scores(scores: str) -> Entries:
    """Return the metadata for a function of the router."""
    return {"expert_gating_func": next(code for code, name in _SCORES.items() if name == scores)}


def scores(function: str) -> Setting:
    """Return the function of the router, which is the same for all models of a family."""
    return Setting(
        lambda read, _: {"scoring_func": read_scores(read, function)},
        lambda _: write_scores(function),
    )


def _read_further_layers(read: GgufMetadata, _: Config) -> dict[str, Any]:
    further = read.get("nextn_predict_layers") or 0
    return {
        "num_hidden_layers": read.size("block_count") - further,
        "num_nextn_predict_layers": further,
    }


FURTHER_LAYERS = Setting(_read_further_layers)
"""The number of layers without those that only predict further tokens."""


def _read_dense_layers(read: GgufMetadata, _: Config) -> dict[str, Any]:
    return {"first_k_dense_replace": read.get("leading_dense_block_count") or 0}


def _write_dense_layers(config: Config) -> Entries:
    """State the number of dense layers, which some configurations state by a list of all layers."""
    first = config.get("first_k_dense_replace")
    if first is None:
        first = config["mlp_layer_types"].index("sparse")
    return {"leading_dense_block_count": first}


def shared_experts(
    router: Setting, routed: str = "n_routed_experts", shared: str = "n_shared_experts"
) -> tuple[Setting, ...]:
    """Return the settings that DeepSeek's mixtures and similar ones have.

    Args:
        router: The setting with the function of the router.
        routed: The configuration's key for the number of experts.
        shared: The same for shared experts.
    """
    return (
        fixed(num_experts=None, shared_expert_intermediate_size=None),
        size("expert_count", routed),
        size("expert_shared_count", shared),
        Setting(_read_dense_layers, _write_dense_layers),
        number("expert_weights_scale", "routed_scaling_factor", 1.0),
        flag("expert_weights_norm", "norm_topk_prob"),
        router,
        value("expert_group_count", "n_group", 1),
        value("expert_group_used_count", "topk_group", 1),
        FURTHER_LAYERS,
    )


_SIGMOIDS = scores("sigmoid")

GLM4_MOE = GgufArchitecture(
    "glm4moe",
    "Glm4MoeForCausalLM",
    {"post_attention_norm": "post_attention_layernorm", **layer_names.SHARED_EXPERTS},
    classes=("SolarOpenForCausalLM",),
    flags=(("use_qk_norm", ".q_norm.weight", True),),
    dense_layers=True,
    has_draft_head=True,
    settings=(*shared_experts(_SIGMOIDS), ROTATED_PART),
)


def _note_heads(config: Config) -> Notes:
    if config["num_key_value_heads"] == config["num_attention_heads"]:
        return ()
    return ("llama.cpp refuses a dots.llm1 with fewer key-value heads than heads",)


DOTS1 = GgufArchitecture(
    "dots1",
    "Dots1ForCausalLM",
    layer_names.SHARED_EXPERTS,
    dense_layers=True,
    settings=(
        *shared_experts(_SIGMOIDS),
        fixed(sliding_window=None, num_nextn_predict_layers=None),
        Setting(notes=_note_heads),
    ),
)


def _shared_width(experts: str) -> Setting:
    """Return the width of all shared experts, whose number is the value of a key."""
    key = "expert_shared_feed_forward_length"
    return Setting(write=lambda config: {key: config["moe_intermediate_size"] * config[experts]})


EXAONE_MOE = GgufArchitecture(
    "exaone-moe",
    "ExaoneMoeForCausalLM",
    layer_names.SHARED_EXPERTS,
    dense_layers=True,
    biases=False,
    settings=(
        WINDOWS_OF_EXAONE,  # its layers alternate as EXAONE 4's do
        *shared_experts(_SIGMOIDS, "num_experts", "num_shared_experts"),
        _shared_width("num_shared_experts"),
    ),
)


def _read_ernie(_: GgufMetadata, config: Config) -> dict[str, Any]:
    return {"moe_k": config["num_experts_per_tok"], "num_experts_per_tok": None}


# Every n-th layer of Ernie 4.5 has experts, from a first one on.
ERNIE4_5_MOE = GgufArchitecture(
    "ernie4_5-moe",
    "Ernie4_5_MoeForCausalLM",
    {**layer_names.SHARED_EXPERTS, "exp_probs_b": "mlp.moe_statics.e_score_correction_bias"},
    dense_layers=True,
    settings=(
        fixed(num_experts=None, shared_expert_intermediate_size=None),
        size("expert_count", "moe_num_experts"),
        Setting(_read_ernie, lambda config: {"expert_used_count": config["moe_k"]}),
        size("expert_shared_count", "moe_num_shared_experts"),
        _shared_width("moe_num_shared_experts"),
        value("leading_dense_block_count", "moe_layer_start_index", 0),
        value("interleave_moe_layer_step", "moe_layer_interval", 1),
    ),
)

# All layers of MiniMax M2 have experts, whose weights llama.cpp always normalizes.
MINIMAX_M2 = GgufArchitecture(
    "minimax-m2",
    "MiniMaxM2ForCausalLM",
    {**layer_names.MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"},
    biases=False,
    settings=(
        fixed(num_experts=None, moe_intermediate_size=None),
        size("expert_count", "num_local_experts"),
        size("expert_feed_forward_length", "intermediate_size"),
        _SIGMOIDS,
    ),
)

_QUERY_KEY_NORMS = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}

HUNYUAN_DENSE = GgufArchitecture(
    "hunyuan-dense", "HunYuanDenseV1ForCausalLM", {**layer_names.LAYER, **_QUERY_KEY_NORMS}
)


def _write_hunyuan(config: Config) -> Entries:
    """State the experts, which are as wide as the shared one."""
    width = config["intermediate_size"]
    return {
        "expert_feed_forward_length": width,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": width,
    }


# All layers of Hunyuan have the same experts and a shared one.
HUNYUAN_MOE = GgufArchitecture(
    "hunyuan-moe",
    "HunYuanMoEV1ForCausalLM",
    {
        **layer_names.LAYER,
        **_QUERY_KEY_NORMS,
        "ffn_gate_inp": "mlp.gate.wg",
        **layer_names.experts("mlp.experts", "mlp.shared_mlp"),
    },
    settings=(
        fixed(attention_bias=False, num_experts_per_tok=None, shared_expert_intermediate_size=None),
        Setting(
            lambda read, _: {"num_shared_expert": read.get("expert_shared_count") or 1},
            _write_hunyuan,
        ),
        size("expert_used_count", "moe_topk"),
    ),
)


def _read_ramp(_: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the scaling of the rope; YaRN's ramp is not rounded to whole pairs."""
    scaling = config.get("rope_scaling")
    return {"rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"}}


def _note_ramp(config: Config) -> Notes:
    is_scaled = (config.get("rope_scaling") or {}).get("rope_type") == "yarn"
    return ("llama.cpp rounds the ends of YaRN's ramp to whole pairs",) if is_scaled else ()


# llama.cpp applies the window of gpt-oss to every other layer.
GPT_OSS = GgufArchitecture(
    "gpt-oss",
    "GptOssForCausalLM",
    {
        **layer_names.SEED_OSS,
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        **layer_names.experts("mlp.experts"),
    },
    settings=(
        fixed(attention_bias=True),
        Setting(
            lambda read, _: {"sliding_window": read.get("attention.sliding_window")},
            lambda config: {"attention.sliding_window": config["sliding_window"] or 0},
        ),
        size("expert_count", "num_local_experts"),
        size("expert_feed_forward_length", "intermediate_size"),
        Setting(_read_ramp, notes=_note_ramp),
    ),
)
