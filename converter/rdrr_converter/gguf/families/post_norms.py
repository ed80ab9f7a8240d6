"""GGUF files of families whose layers have norms after their branches: OLMo 2 and 3, EXAONE 4, GLM.

llama.cpp writes OLMo 3 as OLMo 2: windows tell them apart.
"""

from __future__ import annotations

from math import isclose, log
from typing import Any

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    IGNORED_WINDOW,
    ROTATED_PART,
    WITHOUT_BIASES,
    Config,
    Entries,
    Notes,
    Setting,
)

_EXAONE4_LAYERS = 64


def _layer_types(read: GgufMetadata) -> list[str]:
    """Return the types of the layers, every fourth of which is full if the file does not say."""
    layers, pattern = read.size("block_count"), read.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = pattern if type(pattern) is int and pattern > 0 else 4
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    return [SLIDING if slides else FULL for slides in pattern]


def _write_windows(config: Config) -> Entries:
    """State the window and which layers have it; nothing if there is no window."""
    window, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if not window:
        return {}
    types = config.get("layer_types") or [SLIDING] * layers
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [kind == SLIDING for kind in types],
    }


def _read_olmo2(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return what makes it OLMo 3, if layers have a window: their rope is never scaled."""
    if not read.get("attention.sliding_window"):
        return {}
    keys = {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": _layer_types(read),
        "rope_local_base_freq": config["rope_theta"],
        "sliding_window": read.size("attention.sliding_window"),
    }
    scaling = config.get("rope_scaling") or {}
    usual = 0.1 * log(scaling.get("factor") or 1.0) + 1.0
    if isclose(scaling.get("attention_factor") or 1.0, usual**2, rel_tol=1e-6):
        # Some files state the whole factor instead of one on top of what llama.cpp computes.
        keys["rope_scaling"] = {**scaling, "attention_factor": usual}
    return keys


OLMO2 = GgufArchitecture(
    "olmo2",
    "Olmo2ForCausalLM",
    layer_names.POST_NORMS,
    classes=("Olmo3ForCausalLM",),
    settings=(Setting(_read_olmo2, _write_windows),),
)


def _read_exaone(read: GgufMetadata, _: Config) -> dict[str, Any]:
    """Return the layer types; without a window, all layers have full attention and rope."""
    if not read.get("attention.sliding_window"):
        return {"sliding_window": None, "layer_types": [FULL] * read.size("block_count")}
    window = read.size("attention.sliding_window")
    return {"sliding_window": window, "layer_types": _layer_types(read)}


def _note_windows(config: Config) -> Notes:
    if not config.get("sliding_window") or config["num_hidden_layers"] == _EXAONE4_LAYERS:
        return ()
    return (
        f"llama.cpp gives EXAONE 4 windows only if it has {_EXAONE4_LAYERS} layers, whatever the "
        "file states",
    )


WINDOWS_OF_EXAONE = Setting(_read_exaone, _write_windows)

EXAONE4 = GgufArchitecture(
    "exaone4",
    "Exaone4ForCausalLM",
    layer_names.POST_NORMS,
    settings=(WINDOWS_OF_EXAONE, Setting(notes=_note_windows)),
)


CHATGLM = GgufArchitecture(
    "chatglm",
    "GlmForCausalLM",
    layer_names.STACKED,
    settings=(ROTATED_PART, WITHOUT_BIASES, IGNORED_WINDOW),
)
GLM4 = GgufArchitecture(
    "glm4",
    "Glm4ForCausalLM",
    {
        **layer_names.STACKED,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    settings=(ROTATED_PART, WITHOUT_BIASES, IGNORED_WINDOW),
)
