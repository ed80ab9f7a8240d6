"""Q4_K and Q5_K in torch, with the operations of the codecs `affine` and `_affine_search`.

All sums and products are in the order of ggml's reference quantizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_converter.devices._tensors import (
    divide,
    exceeds_rounding_range,
    f16_bytes,
    ordered_sum,
    round_and_clamp,
    sqrt_rn,
)
from rdrr_converter.devices.candidates import NUMERATORS

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32
_MAX_6BIT = 63.0  # largest 6-bit code


@dataclass
class _Search:
    """The best parameters of each group [groups] that the search has found so far.

    Attributes:
        scale: Scale of the best candidate.
        minimum: Value of code 0 for the best candidate, at most 0.
        inverse: Inverse scale with which the best codes were rounded.
        kept_minimum: Minimum that was subtracted when the best codes were rounded.
        fallback: Whether a value was too large for ggml's rounding.
    """

    scale: Tensor
    minimum: Tensor
    inverse: Tensor
    kept_minimum: Tensor
    fallback: Tensor


def quantize_affine(weights: Tensor, dtype: str, largest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Encode blocks [n, 256].

    Returns:
        Bytes 0 to 15 of each block [n, 16], codes [n, 8, 32], and fallback flags [n].
    """
    import torch

    x = weights.reshape(-1, GROUP).T.contiguous()
    search = _search(x, NUMERATORS[dtype].tolist(), largest)
    d, scales, scale_fallback = _quantize_6bit(search.scale)
    dmin, mins, min_fallback = _quantize_6bit(-search.minimum)
    step = (d.float()[:, None] * scales.float()).reshape(-1)
    offset = (dmin.float()[:, None] * mins.float()).reshape(-1)
    search_values = search.inverse * (x - search.kept_minimum)
    values = torch.where(step != 0, (x + offset) / step, search_values)
    fallback = (search.fallback | exceeds_rounding_range(values).any(dim=0)).reshape(-1, 8)
    fallback |= scale_fallback | min_fallback
    codes = round_and_clamp(values, 0.0, largest).to(torch.uint8).T.reshape(-1, 8, GROUP)
    head = torch.cat([f16_bytes(d), f16_bytes(dmin), _pack_scales(scales, mins)], dim=1)
    return head, codes, fallback.any(dim=1) | d.isinf() | dmin.isinf()


def pack_low(codes: Tensor) -> Tensor:
    """Pack the low four bits of codes [n, 8, 32] into bytes [n, 128]."""
    return ((codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4).reshape(-1, 128)


def pack_fifth(codes: Tensor) -> Tensor:
    """Pack the fifth bits of codes [n, 8, 32] into bytes [n, 32]."""
    bits = codes >> 4
    packed = bits[:, 0]
    for group in range(1, 8):
        packed = packed | bits[:, group] << group
    return packed


def _search(x: Tensor, numerators: list[float], largest: float) -> _Search:
    """Search the scale and the minimum of each column of `x`."""
    import torch

    w = sqrt_rn(ordered_sum(x * x) * (1 / GROUP)) + x.abs()
    sum_w, sum_x = ordered_sum(torch.stack([w, w * x]))
    bottom, top = x.amin(dim=0), x.amax(dim=0)
    minimum = bottom.clamp(max=0.0)
    inverse = divide(largest, top - minimum)
    scale = divide(1.0, inverse)
    best = ordered_sum(_errors(x, w, _codes(x, inverse, minimum, largest), scale, minimum))
    # In a group of equal values all codes are 0. An error of minus infinity keeps every candidate
    # from replacing them.
    flat = top <= minimum
    zero = torch.zeros_like(minimum)
    search = _Search(
        scale=torch.where(flat, zero, scale),
        minimum=minimum,
        inverse=torch.where(flat, zero, inverse),
        kept_minimum=torch.where(flat, zero, minimum),
        fallback=torch.zeros_like(flat),
    )
    best = torch.where(flat, zero - torch.inf, best)
    top = torch.where(flat, minimum + 1.0, top)
    for numerator in numerators:
        minimum = search.minimum
        inverse = divide(numerator, top - minimum)
        search.fallback |= exceeds_rounding_range(inverse * (top - minimum))
        search.fallback |= exceeds_rounding_range(inverse * (bottom - minimum))
        codes = _codes(x, inverse, minimum, largest)
        weighted = w * codes
        sums = ordered_sum(torch.stack([weighted, weighted * codes, weighted * x]))
        determinant, slope, intercept = _least_squares(sum_w, sum_x, sums)
        error = ordered_sum(_errors(x, w, codes, slope, intercept))
        better = (determinant > 0) & (error < best)
        best = torch.where(better, error, best)
        search.scale = torch.where(better, slope, search.scale)
        search.inverse = torch.where(better, inverse, search.inverse)
        search.kept_minimum = torch.where(better, minimum, search.kept_minimum)
        # Like ggml, round later candidates against the improved minimum.
        search.minimum = torch.where(better, intercept, minimum)
    return search


def _codes(x: Tensor, inverse: Tensor, minimum: Tensor, largest: float) -> Tensor:
    return round_and_clamp((x - minimum).mul_(inverse), 0.0, largest)


def _errors(x: Tensor, w: Tensor, codes: Tensor, slope: Tensor, intercept: Tensor) -> Tensor:
    """Return the weighted squared error of each weight."""
    residual = (slope * codes).add_(intercept).sub_(x)
    return residual.mul_(residual).mul_(w)


def _least_squares(sum_w: Tensor, sum_x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit x = slope * code + intercept by weighted least squares, with an intercept of at most 0.

    Returns:
        The determinant, the slope and the intercept.
    """
    import torch

    sum_l, sum_l2, sum_xl = sums
    determinant = sum_w * sum_l2 - sum_l * sum_l
    slope = (sum_w * sum_xl - sum_x * sum_l) / determinant
    intercept = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
    above = intercept > 0
    slope = torch.where(above, sum_xl / sum_l2, slope)
    return determinant, slope, torch.where(above, torch.zeros_like(intercept), intercept)


def _quantize_6bit(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize the values of groups [8 n] to six bits with one scale per block.

    Returns:
        Block scales in float16 [n], codes [n, 8] and fallback flags [n, 8].
    """
    import torch

    groups = values.reshape(-1, 8)
    largest = groups.amax(dim=1).clamp(min=0.0) + 0.0  # turns -0 into +0
    inverse = torch.where(largest > 0, divide(_MAX_6BIT, largest), torch.zeros_like(largest))
    scaled = inverse[:, None] * groups
    fallback = exceeds_rounding_range(scaled)
    whole = torch.where(fallback, torch.zeros_like(scaled), scaled).round_().to(torch.int32)
    # ggml stores the code in a byte before it clamps it.
    codes = (whole & 255).clamp_(max=int(_MAX_6BIT)).to(torch.uint8)
    return divide(largest, _MAX_6BIT).to(torch.float16), codes, fallback


def _pack_scales(scales: Tensor, mins: Tensor) -> Tensor:
    """Pack scales and minimums [n, 8], each 0 to 63, into twelve bytes as the codecs do."""
    import torch

    return torch.cat(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            mins[:, :4] | (mins[:, 4:] >> 4) << 6,
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ],
        dim=1,
    )
