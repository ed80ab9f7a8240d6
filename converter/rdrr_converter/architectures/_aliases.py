"""Aliases: popular names of model families, and the architecture of each.

The class in a `config.json` is matched with the architecture files themselves. This table is for
`--arch` and for configurations that have the name of a family as their `model_type`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType


def plain_name(name: str) -> str:
    """Return a name in lower case without separators."""
    return re.sub(r"[-._ ]", "", name.lower())


NOT_COMPUTED: Mapping[str, str] = MappingProxyType(
    {
        "deberta": "disentangled attention adds products of contents and relative positions to the "
        "scores, for which the graph has no op",
    }
)
"""Why families do not convert that are much like one that does, by the beginning of their names."""

FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cohere": ("aya-23", "aya-expanse-32b", "command-r", "command-r-plus"),
        "cohere2": ("command-a", "command-r7b"),
        "deepseek_v2": ("deepseek-coder-v2",),
        "deepseek_v3": ("deepseek-r1", "kimi-k2", "moonlight"),
        "exaone_moe": ("k-exaone",),
        "gemma2": ("shieldgemma",),
        "gemma3": ("medgemma", "translategemma"),
        "gpt_neox": ("pythia",),
        "llama": (
            "code-llama",
            "deepseek-coder",
            "deepseek-r1-distill-llama",
            "llama-2",
            "llama-3",
            "openllama",
            "smollm",
            "smollm2",
            "solar",
            "tinyllama",
            "tulu-3",
            "vicuna",
            "yi",
        ),
        "mistral": ("mistral3", "mistral-nemo", "mistral-small", "zephyr"),
        "minimax_m2": ("minimax-m2.1", "minimax-m2.5", "minimax-m2.7"),
        "nemotron": ("minitron", "nemotron-4", "nemotron-mini"),
        "phi": ("phi-1", "phi-1.5", "phi-2"),
        "phi3": ("phi-3.5", "phi-4", "phi-4-mini"),
        "phimoe": ("phi-3.5-moe", "phi-mini-moe", "phi-tiny-moe"),
        "qwen2": ("deepseek-r1-distill-qwen", "qwen2.5", "qwen2.5-coder", "qwq"),
        "qwen2_moe": ("qwen1.5-moe",),
        "qwen3_moe": ("qwen3-coder",),
    }
)
"""Names of families by architecture."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {plain_name(alias): name for name, aliases in FAMILIES.items() for alias in aliases}
)
"""Architecture of each family, by its name in the form of `plain_name`."""
