"""Writing any tiny model as GGUF, and what llama.cpp fixes for each architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support import (
    gguf_files,
    gguf_gemma,
    gguf_latest,
    gguf_mixtures,
    gguf_state_spaces,
    gguf_states,
)

LIKE_LLAMA_CPP: Mapping[str, Mapping[str, Any]] = {
    **gguf_files.LIKE_LLAMA_CPP,
    **gguf_gemma.LIKE_LLAMA_CPP,
    **gguf_mixtures.LIKE_LLAMA_CPP,
    **gguf_states.LIKE_LLAMA_CPP,
    **gguf_state_spaces.LIKE_LLAMA_CPP,
    **gguf_latest.LIKE_LLAMA_CPP,
}
"""Configuration values that llama.cpp fixes, by transformers' name of the configuration."""


def writer_of(model_type: str, config: Any) -> Callable[[Path, Path], Path] | None:
    """Return the function that writes a checkpoint in float32 as GGUF, given both paths.

    Args:
        model_type: transformers' name of the configuration.
        config: The configuration.

    Returns:
        The function; None if the tests know no GGUF files of the architecture.
    """
    if model_type in gguf_files.ARCHITECTURES:
        return lambda checkpoint, path: gguf_files.write_gguf(checkpoint, path, "F32")
    if model_type in gguf_mixtures.ARCHITECTURES:
        return gguf_mixtures.write_mixture_gguf
    if model_type in gguf_states.ARCHITECTURES:
        return gguf_states.write_state_gguf
    if model_type in gguf_state_spaces.ARCHITECTURES:
        return gguf_state_spaces.write_state_space_gguf
    if model_type in gguf_latest.ARCHITECTURES:
        return gguf_latest.write_latest_gguf
    if model_type in gguf_gemma.ARCHITECTURES:
        return lambda checkpoint, path: gguf_gemma.write_gemma_gguf(checkpoint, path, config)
    return None
