"""Weights in 8-bit floats with scales to multiply by: one, one per row, or one per block.

weight            F8_E4M3 [N, K]
weight_scale_inv  [ceil(N / 128), ceil(K / 128)], as DeepSeek and Qwen publish; or one number
weight_scale      one number, or one per row
"""

from __future__ import annotations

from rdrr_format.errors import SourceError

from rdrr_converter.checkpoint.source import SourceTensor
from rdrr_converter.sources.quantized._scaled import decode_scaled
from rdrr_converter.sources.quantized.modules import Method, Module, Settings

_SCALES = ("weight_scale_inv", "weight_scale")


def _decode(module: Module, settings: Settings) -> SourceTensor:
    part = next(part for part in _SCALES if part in module.parts)
    return decode_scaled(module, part, _blocks(settings))


def _blocks(settings: Settings) -> tuple[tuple[int, int], ...]:
    size = settings.get("weight_block_size")
    return ((size[0], size[1]),) if size else ()


def _check(settings: Settings, where: object) -> None:
    size = settings.get("weight_block_size")
    if size is not None and not (
        isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)
    ):
        raise SourceError(
            "impossible weight_block_size", where=where, expected="two numbers", found=size
        )


METHOD = Method(markers=_SCALES, parts=("weight", *_SCALES), check=_check, decode=_decode)
