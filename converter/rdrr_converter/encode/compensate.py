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

from rdrr_converter.encode.row_threads import by_rows

if TYPE_CHECKING:
    from torch import Tensor

DAMPING = 0.05
"""Added to the diagonal of H, as a fraction of its mean: the text says only so much of H."""

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

    The CPU does this, wherever `part` is: its threads search for the scales, and the columns of an
    output that depend on each other fit into a cache.
    """
    import torch

    from rdrr_converter.encode._round_in_turn import round_in_turn

    def in_storage_order(values: Floats) -> Floats:
        return np.ascontiguousarray(values.T if layout is Layout.COLUMN else values)

    def search(rows: Floats) -> tuple[Bytes, Floats, Floats]:
        blocks = codec.quantize(rows, None, quality)
        return blocks, *codec.grid(blocks, rows.shape[1])

    triangle, highest = factor.cpu().contiguous().numpy(), np.float32(codec.levels - 1)

    def rounded(weights: Floats, lowest: Floats, step: Floats) -> tuple[Floats, Floats]:
        values, errors = weights.copy(), np.empty_like(weights)
        round_in_turn(values, triangle, lowest, step, highest, errors)
        return values, errors

    weights = part.cpu().contiguous().numpy()
    blocks, lowest, step = by_rows(search, in_storage_order(weights))
    # The transposition of storage order is its own inverse.
    grids = in_storage_order(lowest), in_storage_order(step)
    values, errors = by_rows(rounded, weights, *grids)
    (stored,) = by_rows(lambda *rows: (codec.requantize(*rows),), blocks, in_storage_order(values))
    return stored, torch.from_numpy(errors).to(part.device)
