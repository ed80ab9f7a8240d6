"""Dequantize checkpoints that other programs quantized.

The tensors of a quantized module (packed values, scales, zero points) become one tensor that is
decoded when it is read; only the blocks of MXFP4 are kept. To support another method, add a module
with a `Method` and a row in `_METHODS`. Values are computed exactly from the stored numbers, in
float32; programs that compute in half precision round them further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.files import parse_json_object
from rdrr_converter.checkpoint.source import Source
from rdrr_converter.sources.quantized import awq, compressed, fp8, gptq, mxfp4
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
"""Methods by the value of `quant_method`."""

_KEYS = ("quantization_config", "compression_config")
"""Keys of config.json for the quantization settings; the second is an older name."""

_MLX_KEY = "quantization"
"""The key of config.json in which MLX states group size and bits."""

_GPTQ_FILE = "quantize_config.json"
"""The file in which AutoGPTQ stored the settings before they moved to config.json."""


def dequantized(source: Source) -> Source:
    """Return a checkpoint with each quantized module as one tensor that is decoded when read.

    A checkpoint without quantized modules is returned unchanged.

    Raises:
        SourceError: The quantization method is unknown, or the stored tensors contradict it.
    """
    _check_mlx(source)
    settings = _settings(source)
    if settings is None:
        return source
    name = settings.get("quant_method")
    if name == mxfp4.METHOD:
        return replace(source, tensors=mxfp4.join_blocks(source.tensors))
    method = _METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        raise SourceError(
            "the checkpoint is quantized by an unknown method",
            where=source.config_path,
            expected=f"quant_method {', '.join((*_METHODS, mxfp4.METHOD))}",
            found="none" if name is None else name,
            hint="convert the original, unquantized model",
        )
    tensors, notes = decode_modules(source.tensors, method, settings, source.config_path)
    return replace(source, tensors=tensors, notes=(*source.notes, *notes))


def _check_mlx(source: Source) -> None:
    """Refuse a checkpoint that MLX has quantized, whose configuration names no method.

    Raises:
        SourceError: It is one.
    """
    has_parts = any(
        name.endswith(".biases") and f"{name.removesuffix('biases')}scales" in source.tensors
        for name in source.tensors
    )
    if has_parts or isinstance(source.config.get(_MLX_KEY), Mapping):
        raise SourceError(
            "the checkpoint is quantized by MLX, whose packing is not read",
            where=source.config_path,
            expected=f"quant_method {', '.join((*_METHODS, mxfp4.METHOD))}",
            found=f"{_MLX_KEY} of MLX",
            hint="convert the original, unquantized model",
        )


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
