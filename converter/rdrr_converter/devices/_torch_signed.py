"""Q6_K in torch, with the operations of the codecs `q6_k` and `_signed_search`.

All sums and products are in the order of ggml's reference quantizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdrr_converter.devices._tensors import (
    divide,
    exceeds_rounding_range,
    f16_bytes,
    largest_magnitude,
    ordered_sum,
    round_and_clamp,
)
from rdrr_converter.devices.candidates import NUMERATORS

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 16
_ZERO_THRESHOLD = 1e-15  # smaller groups, and blocks with smaller scales, count as zeros
_LOWEST, _HIGHEST = -32.0, 31.0


def quantize_q6_k(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Encode blocks [n, 256] as bytes [n, 210], and return them with fallback flags [n]."""
    import torch

    x = weights.reshape(-1, GROUP).T.contiguous()
    scales, inverses = _search(x)
    by_block = scales.reshape(-1, GROUP)
    peak = largest_magnitude(by_block.T)
    is_zero = peak.abs() < _ZERO_THRESHOLD
    zero = torch.zeros_like(peak)
    inverse = torch.where(is_zero, zero, divide(-128.0, peak))
    d = torch.where(is_zero, zero, divide(1.0, inverse)).to(torch.float16)
    scale_codes = (inverse[:, None] * by_block).round_().clamp_(max=127.0)
    steps = (d.float()[:, None] * scale_codes).reshape(-1)
    values = torch.where(steps != 0, x / steps, inverses * x)
    fallback = exceeds_rounding_range(values).any(dim=0).reshape(-1, GROUP).any(dim=1) | d.isinf()
    codes = round_and_clamp(values, _LOWEST, _HIGHEST) - _LOWEST
    codes = torch.where((steps != 0) | (inverses != 0), codes, torch.zeros_like(codes))
    packed = _pack(codes.to(torch.uint8).T.reshape(-1, 2, 4, 32))
    int8 = scale_codes.to(torch.int8).view(torch.uint8)
    blocks = torch.cat([packed, int8, f16_bytes(d)], dim=1)
    return torch.where(is_zero[:, None], torch.zeros_like(blocks), blocks), fallback & ~is_zero


def _search(x: Tensor) -> tuple[Tensor, Tensor]:
    """Search the scale of each column of `x`.

    Returns:
        The scales, and the inverse scales with which the codes were rounded; both are 0 for
        groups that count as zeros.
    """
    import torch

    peak = largest_magnitude(x)
    is_zero = peak.abs() < _ZERO_THRESHOLD
    # Dividing by an infinite peak makes all codes of the group 0.
    peak = torch.where(is_zero, torch.full_like(peak, torch.inf), peak)
    w = x * x
    terms = torch.stack([w * x, w])

    def sums(inverse: Tensor) -> tuple[Tensor, Tensor]:
        codes = round_and_clamp(inverse * x, _LOWEST, _HIGHEST)
        products = terms * codes
        products[1] *= codes
        sum_xl, sum_l2 = ordered_sum(products)
        return sum_xl, sum_l2

    zero = torch.zeros_like(peak)
    best_inverse = divide(_LOWEST, peak)
    sum_xl, sum_l2 = sums(best_inverse)
    scale = torch.where(sum_l2 > 0, sum_xl / sum_l2, zero)
    best = scale * sum_xl
    for numerator in NUMERATORS["Q6_K"].tolist():
        inverse = divide(numerator, peak)
        sum_xl, sum_l2 = sums(inverse)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        scale = torch.where(better, sum_xl / sum_l2, scale)
        best = torch.where(better, scale * sum_xl, best)
        best_inverse = torch.where(better, inverse, best_inverse)
    return torch.where(is_zero, zero, scale), torch.where(is_zero, zero, best_inverse)


def _pack(codes: Tensor) -> Tensor:
    """Pack codes [n, 2 halves, 4 runs, 32] into bytes [n, 192]."""
    import torch

    low = (codes[:, :, 0:2] & 15) | (codes[:, :, 2:4] & 15) << 4
    top = codes >> 4
    high = top[:, :, 0] | top[:, :, 1] << 2 | top[:, :, 2] << 4 | top[:, :, 3] << 6
    return torch.cat([low.reshape(-1, 128), high.reshape(-1, 64)], dim=1)
