"""Blocks whose errors compensate each other over the inputs of a matrix (GPTQ, arXiv 2210.17323).

The inputs of a weight W [N, K] are quantized one after the other. With H the mean of x x' over the
activations x that W multiplies, the error of a column makes the later ones move so that the mean
square of the error of W x is least: by U[k, k + 1:] / U[k, k] times the error, where H^-1 = U' U.

The scales of a few columns are chosen at once, before these are compensated among each other, since
a block of the row layout holds as many columns anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rdrr_format.codecs import CODECS, Bytes, Codec, Floats
from rdrr_format.dtypes import DType
from rdrr_format.layouts import Layout

if TYPE_CHECKING:
    from torch import Tensor

DAMPING = 0.05
"""Added to the diagonal of H, as a fraction of its mean: the text says only so much of H."""

_TINY = 1e-30

COLUMNS = {Layout.ROW: 256, Layout.COLUMN: 64}
"""Inputs whose scales are chosen at once."""


def is_compensable(dtype: DType, layout: Layout) -> bool:
    """Return whether `compensate` can encode a matrix."""
    return dtype.is_block and CODECS[dtype.name].levels > 0 and layout in COLUMNS


def inverse_factor(hessian: Tensor) -> Tensor:
    """Return the upper triangular U with (H + damping)^-1 = U' U, float32 [K, K].

    Args:
        hessian: H, float64 [K, K].
    """
    import torch

    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped(hessian)))
    upper: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()


def damped(hessian: Tensor) -> Tensor:
    """Return H with damping, which has an inverse."""
    result = hessian.clone()
    diagonal = result.diagonal()
    # Nothing is known of inputs that are always zero; their weights are quantized alone.
    diagonal[diagonal <= 0] = 1
    diagonal += DAMPING * diagonal.mean()
    return result


def compensate(
    weight: Tensor, factor: Tensor, dtype: DType, layout: Layout, quality: str = "ref"
) -> Bytes:
    """Encode a matrix with compensated errors.

    Args:
        weight: W, float32 [N, K].
        factor: The result of `inverse_factor`, float32 [K, K].
        dtype: Its storage type.
        layout: Its layout, row or column.
        quality: Search for the scales, one of `QUALITIES`.

    Returns:
        The stored rows, uint8 [stored rows, row bytes].
    """
    codec, left = CODECS[dtype.name], weight.clone()
    stored = []
    for first in range(0, left.shape[1], COLUMNS[layout]):
        part = slice(first, min(first + COLUMNS[layout], left.shape[1]))
        blocks, errors = _encode(codec, layout, left[:, part], factor[part, part], quality)
        left[:, part.stop :] -= errors @ factor[part, part.stop :]
        stored.append(blocks)
    return np.concatenate(stored, axis=0 if layout is Layout.COLUMN else 1)


def _encode(
    codec: Codec, layout: Layout, part: Tensor, factor: Tensor, quality: str
) -> tuple[Bytes, Tensor]:
    """Encode some columns, and return their blocks and errors, in units of the factor [N, columns].

    `part` is changed.
    """
    import torch

    def to_rows(values: Tensor) -> Floats:
        ordered = values.T if layout is Layout.COLUMN else values
        return np.ascontiguousarray(ordered.cpu().numpy())

    def from_rows(rows: Floats) -> Tensor:
        ordered = np.ascontiguousarray(rows.T if layout is Layout.COLUMN else rows)
        return torch.from_numpy(ordered).to(part.device)

    rows = to_rows(part)
    blocks = codec.quantize(rows, None, quality)
    lowest, step = map(from_rows, codec.grid(blocks, rows.shape[1]))
    values, errors = _round_in_turn(part, factor, lowest, step, codec.levels)
    return codec.requantize(blocks, to_rows(values)), errors


def _round_in_turn(
    part: Tensor, factor: Tensor, lowest: Tensor, step: Tensor, levels: int
) -> tuple[Tensor, Tensor]:
    """Round columns one by one to their grids, moving the later ones; return values and errors."""
    import torch

    # Columns as rows: each is then contiguous in memory.
    left, lowest, step = (values.T.contiguous() for values in (part, lowest, step))
    # The value of a group without a step is the same whatever its codes are.
    inverse = torch.where(step.abs() < _TINY, 0, 1 / step)
    values, errors = torch.empty_like(left), torch.empty_like(left)
    for at in range(len(left)):
        codes = ((left[at] - lowest[at]) * inverse[at]).round_().clamp_(0, levels - 1)
        values[at] = lowest[at] + codes * step[at]
        errors[at] = (left[at] - values[at]) / factor[at, at]
        left[at + 1 :].addr_(factor[at, at + 1 :], errors[at], alpha=-1)
    return values.T, errors.T
