"""Gemma 1 to 3 in GGUF files, and the embedding model of Gemma 3."""

from __future__ import annotations

from typing import Any

from rdrr_converter.architectures.layers import FULL, SLIDING
from rdrr_converter.gguf import layer_names
from rdrr_converter.gguf.architecture import GgufArchitecture
from rdrr_converter.gguf.metadata import GgufMetadata
from rdrr_converter.gguf.settings import (
    IGNORED_WINDOW,
    WITHOUT_BIASES,
    WRITTEN_WINDOW,
    Config,
    Entries,
    Notes,
    Setting,
    fixed,
    number,
    period_of,
)

LOCAL_THETA = 10000.0
"""Base of the rope of layers with a window, if the file states none."""

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3_PERIOD = 6

GEMMA = GgufArchitecture(
    "gemma", "GemmaForCausalLM", norm_offset=-1.0, settings=(WITHOUT_BIASES, IGNORED_WINDOW)
)


def _width_of_heads(config: Config, layers: int, large: int) -> float:
    """Return the scale of the queries, which llama.cpp fixes by the number of layers."""
    width: float = config["head_dim"]
    if layers == large:
        width = config["hidden_size"] / config["num_attention_heads"]
    return width


def _read_gemma2(read: GgufMetadata, config: Config) -> dict[str, Any]:
    scalar = _width_of_heads(config, read.size("block_count"), _GEMMA2_27B_LAYERS)
    window = read.get("attention.sliding_window")
    return {"query_pre_attn_scalar": scalar, **({"sliding_window": window} if window else {})}


# llama.cpp applies the window to every other layer without further metadata.
GEMMA2 = GgufArchitecture(
    "gemma2",
    "Gemma2ForCausalLM",
    layer_names.FOUR_NORMS,
    norm_offset=-1.0,
    settings=(Setting(_read_gemma2), WRITTEN_WINDOW),
)


def _read_gemma3(read: GgufMetadata, config: Config) -> dict[str, Any]:
    """Return the layer types and the scale of the queries."""
    layers = read.size("block_count")
    pattern = read.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        period = read.size("attention.sliding_window_pattern") if pattern else _GEMMA3_PERIOD
        pattern = [(layer + 1) % period != 0 for layer in range(layers)]
    scalar = _width_of_heads(config, layers, _GEMMA3_27B_LAYERS)
    scale = read.number("attention.scale")
    if scale is not None:
        # Six digits undo the rounding to float32; 256 would come back as 256.00002.
        scalar = float(f"{scale**-2:.6g}")
    return {
        "layer_types": [SLIDING if slides else FULL for slides in pattern],
        "query_pre_attn_scalar": scalar,
        "sliding_window": read.get("attention.sliding_window"),
    }


def _slides(config: Config) -> list[bool]:
    types = config.get("layer_types") or [SLIDING] * config["num_hidden_layers"]
    return [kind == SLIDING for kind in types]


def _write_gemma3(config: Config) -> Entries:
    entries: Entries = {}
    slides, scalar = _slides(config), config["query_pre_attn_scalar"]
    period = _period(slides)
    if period != _GEMMA3_PERIOD:
        entries["attention.sliding_window_pattern"] = period or slides
    if scalar != config["head_dim"]:
        entries["attention.scale"] = float(scalar) ** -0.5
    return entries


def _notes_of_gemma3(config: Config) -> Notes:
    notes = []
    if _period(_slides(config)) is None:
        notes.append(
            "layers with a sliding window follow no period: llama.cpp may refuse the list of them"
        )
    if config["query_pre_attn_scalar"] != config["head_dim"]:
        notes.append(
            "llama.cpp computes the attention scale of Gemma 3 from the head dimension and "
            f"ignores query_pre_attn_scalar {config['query_pre_attn_scalar']}"
        )
    return tuple(notes)


def _period(slides: list[bool]) -> int | None:
    """Return n if every n-th layer has no window and all others have one, else None."""
    return period_of(slides, (_GEMMA3_PERIOD, *range(1, len(slides) + 1)))


LOCAL_ROPE = number("rope.freq_base_swa", "rope_local_base_freq", LOCAL_THETA)
_GEMMA3_SETTINGS = (
    LOCAL_ROPE,
    WRITTEN_WINDOW,
    Setting(_read_gemma3, _write_gemma3, _notes_of_gemma3),
)

GEMMA3 = GgufArchitecture(
    "gemma3",
    "Gemma3ForCausalLM",
    layer_names.FOUR_NORMS,
    norm_offset=-1.0,
    settings=_GEMMA3_SETTINGS,
)
GEMMA_EMBEDDING = GgufArchitecture(
    "gemma-embedding",
    "Gemma3TextModel",
    layer_names.FOUR_NORMS,
    norm_offset=-1.0,
    is_causal=False,
    settings=(*_GEMMA3_SETTINGS, fixed(use_bidirectional_attention=True)),
)
