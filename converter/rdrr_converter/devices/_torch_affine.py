"""Q4_K and Q5_K in torch: `affine` and `_affine_search` of the codecs, in ggml's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_converter.devices._tensors import (
    bytes_of,
    clipped,
    in_order,
    is_out_of_range,
    over,
    root,
)
from rdrr_converter.devices.candidates import NUMERATORS

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32
_SIXTHS = 63.0  # the largest of six bits


@dataclass
class _Search:
    """What is known of each group [groups], as it gets better.

    Attributes:
        scale: The best scale.
        low: Negative of the best minimum.
        inverse: What gave the best codes, with `kept_low`.
        kept_low: See `inverse`.
        odd: Where ggml's rounding goes astray.
    """

    scale: Tensor
    low: Tensor
    inverse: Tensor
    kept_low: Tensor
    odd: Tensor


def quantize_affine(weights: Tensor, dtype: str, largest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Encode blocks [n, 256].

    Returns:
        Bytes 0 to 15 of each block [n, 16], codes [n, 8, 32], and the odd blocks [n].
    """
    import torch

    x = weights.reshape(-1, GROUP).T.contiguous()
    found = _search(x, NUMERATORS[dtype].tolist(), largest)
    d, scales, odd_scales = _sixths(found.scale)
    dmin, mins, odd_mins = _sixths(-found.low)
    step = (d.float()[:, None] * scales.float()).reshape(-1)
    offset = (dmin.float()[:, None] * mins.float()).reshape(-1)
    own = found.inverse * (x - found.kept_low)
    values = torch.where(step != 0, (x + offset) / step, own)
    odd = (found.odd | is_out_of_range(values).any(dim=0)).reshape(-1, 8)
    odd |= odd_scales | odd_mins
    codes = clipped(values, 0.0, largest).to(torch.uint8).T.reshape(-1, 8, GROUP)
    head = torch.cat([bytes_of(d), bytes_of(dmin), _pack_scales(scales, mins)], dim=1)
    return head, codes, odd.any(dim=1) | d.isinf() | dmin.isinf()


def pack_low(codes: Tensor) -> Tensor:
    """The low four bits of codes [n, 8, 32] as bytes [n, 128]."""
    return ((codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4).reshape(-1, 128)


def pack_fifth(codes: Tensor) -> Tensor:
    """The fifth bits of codes [n, 8, 32] as bytes [n, 32]."""
    bits = codes >> 4
    packed = bits[:, 0]
    for group in range(1, 8):
        packed = packed | bits[:, group] << group
    return packed


def _search(x: Tensor, numerators: list[float], largest: float) -> _Search:
    """Scale and minimum of each column of `x`."""
    import torch

    w = root(in_order(x * x) * (1 / GROUP)) + x.abs()
    sum_w, sum_x = in_order(torch.stack([w, w * x]))
    bottom, top = x.amin(dim=0), x.amax(dim=0)
    low = bottom.clamp(max=0.0)
    inverse = over(largest, top - low)
    scale = over(1.0, inverse)
    best = in_order(_errors(x, w, _codes(x, inverse, low, largest), scale, low))
    # One value only: codes are 0, and no candidate has an error below minus infinity.
    flat = top <= low
    zero = torch.zeros_like(low)
    found = _Search(
        scale=torch.where(flat, zero, scale),
        low=low,
        inverse=torch.where(flat, zero, inverse),
        kept_low=torch.where(flat, zero, low),
        odd=torch.zeros_like(flat),
    )
    best = torch.where(flat, zero - torch.inf, best)
    top = torch.where(flat, low + 1.0, top)
    for numerator in numerators:
        low = found.low
        inverse = over(numerator, top - low)
        found.odd |= is_out_of_range(inverse * (top - low))
        found.odd |= is_out_of_range(inverse * (bottom - low))
        codes = _codes(x, inverse, low, largest)
        weighed = w * codes
        sums = in_order(torch.stack([weighed, weighed * codes, weighed * x]))
        spread, slope, base = _solve(sum_w, sum_x, sums)
        error = in_order(_errors(x, w, codes, slope, base))
        better = (spread > 0) & (error < best)
        best = torch.where(better, error, best)
        found.scale = torch.where(better, slope, found.scale)
        found.inverse = torch.where(better, inverse, found.inverse)
        found.kept_low = torch.where(better, low, found.kept_low)
        # ggml overwrites the minimum: later candidates are rounded against the new one.
        found.low = torch.where(better, base, low)
    return found


def _codes(x: Tensor, inverse: Tensor, low: Tensor, largest: float) -> Tensor:
    return clipped((x - low).mul_(inverse), 0.0, largest)


def _errors(x: Tensor, w: Tensor, codes: Tensor, slope: Tensor, base: Tensor) -> Tensor:
    """The error that each weight adds."""
    miss = (slope * codes).add_(base).sub_(x)
    return miss.mul_(miss).mul_(w)


def _solve(sum_w: Tensor, sum_x: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted least squares: the determinant, the slope, and the floor, which is not above 0."""
    import torch

    sum_l, sum_l2, sum_xl = sums
    spread = sum_w * sum_l2 - sum_l * sum_l
    slope = (sum_w * sum_xl - sum_x * sum_l) / spread
    base = (sum_l2 * sum_x - sum_l * sum_xl) / spread
    above = base > 0
    slope = torch.where(above, sum_xl / sum_l2, slope)
    return spread, slope, torch.where(above, torch.zeros_like(base), base)


def _sixths(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Block scale in float16 [n], 6-bit codes [n, 8] of the groups' values, and odd ones [n, 8]."""
    import torch

    groups = values.reshape(-1, 8)
    largest = groups.amax(dim=1).clamp(min=0.0) + 0.0  # makes +0 of -0
    inverse = torch.where(largest > 0, over(_SIXTHS, largest), torch.zeros_like(largest))
    scaled = inverse[:, None] * groups
    odd = is_out_of_range(scaled)
    whole = torch.where(odd, torch.zeros_like(scaled), scaled).round_().to(torch.int32)
    # ggml keeps the code in a byte before it clips.
    codes = (whole & 255).clamp_(max=int(_SIXTHS)).to(torch.uint8)
    return over(largest, _SIXTHS).to(torch.float16), codes, odd


def _pack_scales(scales: Tensor, mins: Tensor) -> Tensor:
    """Scales and minimums [n, 8], each 0 to 63, as the twelve bytes of `_scales`."""
    import torch

    return torch.cat(
        [
            scales[:, :4] | (scales[:, 4:] >> 4) << 6,
            mins[:, :4] | (mins[:, 4:] >> 4) << 6,
            (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4,
        ],
        dim=1,
    )
