"""Weights quantized in the formats of other programs, written from their descriptions.

Every function returns the tensors of one module and the float32 weights [N, K] that they encode,
computed before anything is packed. Packing works bit by bit, so that it shares no code with the
readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Parts = dict[str, Any]
Quantize = Callable[[np.ndarray, np.random.Generator], tuple[Parts, np.ndarray]]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""For each position in a word, lowest bits first, which of its eight columns is stored there."""


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack unsigned values [rows, n] into int32 words, lowest bits first; pad the last word."""
    stream = (values[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32)) & 1
    stream = stream.reshape(values.shape[0], -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.packbits(stream.astype(np.uint8), axis=1, bitorder="little").view("<i4")


def grouped(
    weight: np.ndarray, bits: int, index: np.ndarray, *, symmetric: bool = False, least: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return values [N, K], float16 scales and zero points [N, groups], and dequantized weights.

    The first zero point is `least`; for 0 version 1 of GPTQ stores the largest value.
    """
    count, top = int(index.max()) + 1, (1 << bits) - 1
    scales = np.empty((weight.shape[0], count), np.float16)
    zeros = np.empty(scales.shape, np.int64)
    for group in range(count):
        part = weight[:, index == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, group] = 2 * np.maximum(-low, high) / top
            zeros[:, group] = 1 << (bits - 1)
        else:
            scales[:, group] = (high - low) / top
            zeros[:, group] = np.clip(np.rint(-low / scales[:, group]), least, top)
    if not symmetric:
        zeros[0, 0] = least
    scale, zero = scales.astype(np.float32)[:, index], zeros[:, index]
    values = np.clip(np.rint(weight / scale) + zero, 0, top).astype(np.int64)
    return values, scales, zeros, ((values - zero) * scale).astype(np.float32)


def gptq(
    bits: int = 4,
    group: int = 64,
    *,
    act_order: bool = False,
    version: int = 1,
    listed: bool = True,
    least: int = 0,
    symmetric: bool = False,
) -> Quantize:
    """Quantize as GPTQ: packed along K, zero points less one in version 1, optional act-order."""

    def quantize(weight: np.ndarray, rng: np.random.Generator) -> tuple[Parts, np.ndarray]:
        index = np.arange(weight.shape[1]) // group
        if act_order:
            index = rng.permutation(index)
        values, scales, zeros, meaning = grouped(
            weight, bits, index, symmetric=symmetric, least=least
        )
        parts = {
            "qweight": pack(values, bits).T,
            "qzeros": pack((zeros.T - (version == 1)) % (1 << bits), bits),
            "scales": scales.T,
        }
        if listed:
            parts["g_idx"] = index.astype(np.int32)
        return parts, meaning

    return quantize


def awq(group: int = 64, *, symmetric: bool = False) -> Quantize:
    """Quantize as AWQ gemm: packed along N, each eight columns in AWQ's order."""

    def order(values: np.ndarray) -> np.ndarray:
        return values.reshape(values.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(values.shape)

    def quantize(weight: np.ndarray, _: np.random.Generator) -> tuple[Parts, np.ndarray]:
        index = np.arange(weight.shape[1]) // group
        values, scales, zeros, meaning = grouped(weight, 4, index, symmetric=symmetric)
        parts = {"qweight": pack(order(values.T), 4), "scales": scales.T}
        if not symmetric:
            parts["qzeros"] = pack(order(zeros.T), 4)
        return parts, meaning

    return quantize


def packed(group: int = 64, *, symmetric: bool = False) -> Quantize:
    """Quantize as compressed-tensors pack-quantized: values packed along K, zero points along N."""

    def quantize(weight: np.ndarray, _: np.random.Generator) -> tuple[Parts, np.ndarray]:
        index = np.arange(weight.shape[1]) // group
        values, scales, zeros, meaning = grouped(weight, 4, index, symmetric=symmetric)
        parts = {
            "weight_packed": pack(values, 4),
            "weight_scale": scales,
            "weight_shape": np.array(weight.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = pack(zeros.T, 4).T
        return parts, meaning

    return quantize


def fp8(
    rows: int, columns: int, part: str = "weight_scale_inv", scales: str = "float32"
) -> Quantize:
    """Quantize to fp8 with one scale per tile of rows x columns; 0 means all rows or columns.

    Torch rounds the values and reads them back.
    """

    def quantize(weight: np.ndarray, _: np.random.Generator) -> tuple[Parts, np.ndarray]:
        import torch

        height, width = rows or weight.shape[0], columns or weight.shape[1]
        values, meaning = torch.from_numpy(weight), torch.empty(weight.shape)
        shape = (-(-weight.shape[0] // height), -(-weight.shape[1] // width))
        stored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        tile_scales = torch.empty(shape, dtype=getattr(torch, scales))
        for i in range(shape[0]):
            for j in range(shape[1]):
                tile = (slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width))
                tile_scales[i, j] = values[tile].abs().max() / 448
                stored[tile] = (values[tile] / tile_scales[i, j].float()).to(torch.float8_e4m3fn)
                meaning[tile] = stored[tile].float() * tile_scales[i, j].float()
        return {"weight": stored, part: tile_scales}, meaning.numpy()

    return quantize


def write_quantized(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    *,
    pickled: bool = False,
) -> Path:
    """Write a checkpoint of NumPy and torch tensors, with its `quantization_config`."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    content = {**config} if settings is None else {**config, "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    state = {
        name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
        for name, value in tensors.items()
    }
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        state = {name: value.contiguous() for name, value in state.items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
