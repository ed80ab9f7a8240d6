"""GGUF files of families with LayerNorm."""

from __future__ import annotations

from math import isclose
from typing import Any

from rdrr_format.errors import ConversionError

from rdrr_converter.architectures.layers import FULL
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    IGNORED_WINDOW,
    ROTATED_PART,
    TANH_GELU,
    Config,
    Entries,
    Notes,
    Setting,
    fixed,
    value,
)

_COHERE2_PERIOD = 4
"""llama.cpp's period of layers without a window in Cohere 2, if the file states none."""

_LAYERS_WITH_QUERY_NORM = 64

_OLMO_EPS = 1e-5


_WINDOW = Setting(lambda read, _: {"sliding_window": read.get("attention.sliding_window")})

# Biases that exist are used although the flag is false.
STARCODER2 = GgufArchitecture(
    "starcoder2",
    "Starcoder2ForCausalLM",
    layer_norm=True,
    settings=(_WINDOW, fixed(use_bias=False), IGNORED_WINDOW),
)
PHI2 = GgufArchitecture(
    "phi2",
    "PhiForCausalLM",
    {**layer_names.LAYER, "attn_qkv": "self_attn.qkv_proj"},
    layer_norm=True,
    settings=(ROTATED_PART, IGNORED_WINDOW),
)
NEMOTRON = GgufArchitecture(
    "nemotron",
    "NemotronForCausalLM",
    norm_offset=-1.0,
    layer_norm=True,
    settings=(ROTATED_PART, IGNORED_WINDOW),
)


def _read_parallel(read: GgufMetadata, _: Config) -> dict[str, Any]:
    parallel = read.get("use_parallel_residual")
    return {"use_parallel_residual": True if parallel is None else parallel}


def _write_parallel(config: Config) -> Entries:
    return {"use_parallel_residual": config["use_parallel_residual"]}


GPT_NEOX = GgufArchitecture(
    "gptneox",
    "GPTNeoXForCausalLM",
    layer_names.ONE_STACK,
    layer_norm=True,
    settings=(
        ROTATED_PART,
        fixed(attention_bias=False),
        Setting(_read_parallel, _write_parallel),
        TANH_GELU,
    ),
)
STABLELM = GgufArchitecture(
    "stablelm",
    "StableLmForCausalLM",
    layer_norm=True,
    flags=(
        ("qk_layernorm", ".q_norm.weight", True),
        ("use_parallel_residual", ".post_attention_layernorm.weight", False),
    ),
    settings=(ROTATED_PART, Setting(write=_write_parallel)),
)


def _write_layout(config: Config) -> Entries:
    """State the order of the stacked rows."""
    if config["bias"]:
        raise ConversionError(
            "llama.cpp reads no biases of Falcon's projections",
            hint="export it `to` safetensors",
        )
    return {"tensor_data_layout": "jploski"}


_FALCON_NAMES = {
    theirs: ours for theirs, ours in layer_names.ONE_STACK.items() if theirs != "ffn_norm"
}

# The branches of its layers are parallel; the norms decide the rest.
FALCON = GgufArchitecture(
    "falcon",
    "FalconForCausalLM",
    _FALCON_NAMES,
    layer_norm=True,
    flags=(("new_decoder_architecture", ".post_attention_layernorm.weight", True),),
    two_norms={
        **_FALCON_NAMES,
        "attn_norm": "post_attention_layernorm",
        "attn_norm_2": "input_layernorm",
    },
    settings=(
        fixed(bias=False, multi_query=False, parallel_attn=True),
        Setting(write=_write_layout),
        TANH_GELU,
    ),
)


def _read_scale(read: GgufMetadata, _: Config) -> dict[str, Any]:
    scale = read.number("logit_scale")
    return {"logit_scale": 1.0 if scale is None else scale}


def _write_scale(config: Config) -> Entries:
    return {"logit_scale": float(config["logit_scale"]), "rope.scaling.type": "none"}


def _note_query_norms(config: Config) -> Notes:
    """Note which models llama.cpp expects norms in."""
    expects = config["num_hidden_layers"] >= _LAYERS_WITH_QUERY_NORM
    if bool(config["use_qk_norm"]) == expects:
        return ()
    return (
        "llama.cpp refuses the model: it expects norms on queries and keys in models with "
        f"{_LAYERS_WITH_QUERY_NORM} layers or more, and only there",
    )


_SCALE = Setting(_read_scale, _write_scale)

COMMAND_R = GgufArchitecture(
    "command-r",
    "CohereForCausalLM",
    layer_norm=True,
    flags=(("use_qk_norm", ".q_norm.weight", True),),
    settings=(_SCALE, Setting(notes=_note_query_norms)),
)


def _read_period(read: GgufMetadata, _: Config) -> dict[str, Any]:
    period = read.get("attention.sliding_window_pattern")
    return {"sliding_window_pattern": _COHERE2_PERIOD if period is None else period}


def _period(config: Config) -> int:
    types = config.get("layer_types") or ()
    return types.index(FULL) + 1 if FULL in types else _COHERE2_PERIOD


def _write_period(config: Config) -> Entries:
    """State the period of the layers without a window if it is unusual."""
    period = _period(config)
    return {} if period == _COHERE2_PERIOD else {"attention.sliding_window_pattern": period}


def _note_period(config: Config) -> Notes:
    period = _period(config)
    if period == _COHERE2_PERIOD:
        return ()
    return (f"llama.cpp assumes a period of {_COHERE2_PERIOD} layers, not {period}",)


COHERE2 = GgufArchitecture(
    "cohere2",
    "Cohere2ForCausalLM",
    layer_norm=True,
    settings=(
        _SCALE,
        value("attention.sliding_window", "sliding_window"),
        Setting(_read_period, _write_period, _note_period),
    ),
)


def _read_olmo(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the limit of the projections, and no epsilon, which is no key of OLMo's.

    Another epsilon than its own is refused as unread.
    """
    is_usual = isclose(config["rms_norm_eps"] or _OLMO_EPS, _OLMO_EPS, rel_tol=1e-6)
    limit = {"clip_qkv": read.get("attention.clamp_kqv") or None}
    return limit | ({"rms_norm_eps": None} if is_usual else {})


def _write_olmo(config: Config) -> Entries:
    limit = config.get("clip_qkv")
    return {} if limit is None else {"attention.clamp_kqv": float(limit)}


OLMO = GgufArchitecture(
    "olmo",
    "OlmoForCausalLM",
    interleaved=layer_names.QUERIES_KEYS,
    layer_norm=True,
    settings=(Setting(_read_olmo, _write_olmo),),
)
