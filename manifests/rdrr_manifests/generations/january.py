"""Translate manifests of January 2026: typed blocks, some of whose fields had other meanings.

The kernel paths of that generation name kernels of another runtime and are not translated.
"""

from __future__ import annotations

from rdrr_manifests.generations.blocks import eos_of
from rdrr_manifests.generations.normalized import Draft, block, is_number


def translate(draft: Draft) -> None:
    """Translate the blocks of a January manifest to their current meaning, in place."""
    data = draft.data
    inference = data["inference"]
    _read_scale(draft, block(inference, "attention"), block(data, "architecture"))
    _read_pattern(draft, block(inference, "layerPattern"), inference.get("presetId"))
    _read_norm_flag(draft, block(inference, "normalization"))
    eos = eos_of(data)
    if eos is not None:
        data["eos_token_id"] = eos
    quantization = data.get("quantizationInfo")
    if isinstance(quantization, dict) and quantization.get("layout") is None:
        quantization["layout"] = "row"
        draft.note("quantizationInfo.layout was missing and was read as row")


def _read_scale(draft: Draft, attention: dict[str, object], sizes: dict[str, object]) -> None:
    """Square `queryPreAttnScalar`, which held the square root of its current value."""
    scalar, head_dim = attention.get("queryPreAttnScalar"), sizes.get("headDim")
    if not (is_number(head_dim) and isinstance(head_dim, (int, float)) and head_dim > 0):
        return
    if scalar is None and attention:
        attention["queryPreAttnScalar"] = head_dim
        draft.note("queryPreAttnScalar was missing and was read as the head size")
    elif isinstance(scalar, (int, float)) and 1 < scalar < head_dim / 2:
        squared = float(scalar) ** 2
        attention["queryPreAttnScalar"] = (
            head_dim if abs(squared - head_dim) < 1e-3 * head_dim else squared
        )
        draft.note("queryPreAttnScalar was squared: in January 2026 it held a square root")


def _read_pattern(draft: Draft, pattern: dict[str, object], preset: object) -> None:
    """Set the offset of an `every_n` pattern to the last layer of each period.

    The field was missing at first, and was then written as 0 for Gemma, whose global layer is the
    last one of each period.
    """
    period, offset = pattern.get("period"), pattern.get("offset")
    is_gemma = isinstance(preset, str) and preset.startswith("gemma3")
    is_open = offset is None or (offset == 0 and is_gemma)
    if pattern.get("type") == "every_n" and is_open and isinstance(period, int) and period > 0:
        pattern["offset"] = period - 1
        draft.warn(
            "layer-pattern",
            "inference.layerPattern.offset",
            "it was read as the last layer of each period, as in the checkpoints",
            found=str(offset),
        )


def _read_norm_flag(draft: Draft, norms: dict[str, object]) -> None:
    """Set `postAttentionNorm` if the tensor of that name exists.

    In January 2026 the flag meant Gemma's norm only, not the tensor that Llama gives this name.
    """
    names = block(draft.data, "tensors")
    exists = any(name.endswith(".post_attention_layernorm.weight") for name in names)
    if exists and norms.get("postAttentionNorm") is False and not norms.get("preFeedforwardNorm"):
        norms["postAttentionNorm"] = True
        draft.note("postAttentionNorm was set because the tensor exists")
