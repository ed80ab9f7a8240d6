"""Checkpoints that were quantized by other programs, read as if they were not.

Each module's several stored tensors (packed values, scales, zero points) become one tensor that
is decoded where it is read. A further method is a module with a `Method`, and one line in
`_METHODS`. The values are those that the stored numbers state, in float32: programs that compute
in half precision round them further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.sources.base import Source, parse_json_object
from rdrr_converter.sources.quantized import awq, compressed, fp8, gptq
from rdrr_converter.sources.quantized.modules import Method, decode_modules

__all__ = ["dequantized"]

_METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "awq": awq.METHOD,
        "compressed-tensors": compressed.METHOD,
        "fbgemm_fp8": fp8.METHOD,
        "fp8": fp8.METHOD,
        "gptq": gptq.METHOD,
    }
)
"""Values of `quant_method`, and how they are read."""

_KEYS = ("quantization_config", "compression_config")
"""Where config.json speaks of quantization; the second is what it was called before."""

_GPTQ_FILE = "quantize_config.json"
"""Where AutoGPTQ spoke of it before config.json did."""


def dequantized(source: Source) -> Source:
    """The checkpoint with each quantized module as one tensor; itself if none is quantized.

    Raises:
        SourceError: It is quantized in a way that is not known, or what is stored contradicts it.
    """
    settings = _settings(source)
    if settings is None:
        return source
    name = settings.get("quant_method")
    method = _METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        raise SourceError(
            "quantized in a way that cannot be read",
            where=source.config_path,
            expected=f"quant_method {', '.join(_METHODS)}",
            found="none" if name is None else name,
            hint="convert the model it was made from",
        )
    tensors, notes = decode_modules(source.tensors, method, settings, source.config_path)
    return replace(source, tensors=tensors, notes=(*source.notes, *notes))


def _settings(source: Source) -> Mapping[str, Any] | None:
    for key in _KEYS:
        settings = source.config.get(key)
        if isinstance(settings, Mapping):
            return settings
    if not any(name.endswith(".qweight") for name in source.tensors):
        return None
    content = source.content(_GPTQ_FILE)
    if content is None:
        return None
    return {"quant_method": "gptq", **parse_json_object(content, source.path / _GPTQ_FILE)}
