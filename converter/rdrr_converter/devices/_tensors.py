"""What the codecs in torch share: sums and quotients with the bits of a plain loop.

Eager torch rounds every operation by itself and joins none, on CUDA as on the CPU. What it does
otherwise is avoided: its sums have no order, and a number divide a tensor is a product with the
tensor's reciprocal, as is a tensor divide a number.

Groups lie in columns, [weights of a group, groups], so that each step of a sum is one operation on
all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IN_RANGE = 4194303.0
"""Magnitudes from here on ggml does not round to the nearest integer."""


def ordered_sum(terms: Tensor) -> Tensor:
    """Sums [..., groups] of terms [..., weights, groups], one weight after the other."""
    total = terms[..., 0, :].clone()
    for at in range(1, terms.shape[-2]):
        total += terms[..., at, :]
    return total


def divide(dividend: Tensor | float, divisor: Tensor | float) -> Tensor:
    """A rounded quotient, one of whose terms may be a number."""
    import torch

    if isinstance(dividend, float):
        assert not isinstance(divisor, float)
        dividend = torch.full_like(divisor, dividend)
    if isinstance(divisor, float):
        divisor = torch.full_like(dividend, divisor)
    return dividend / divisor


def sqrt_rn(values: Tensor) -> Tensor:
    """Square roots, rounded to nearest; torch's own in float32 are not on every CPU."""
    import torch

    return torch.sqrt(values.double()).float()


def round_and_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Nearest integers, ties to even, from low to high; changes `values`."""
    return values.round_().clamp_(low, high)


def exceeds_rounding_range(values: Tensor) -> Tensor:
    """Where ggml's rounding goes astray; also where a value is no number."""
    return ~(values.abs() < IN_RANGE)


def largest_magnitude(values: Tensor) -> Tensor:
    """Of each column [n, columns] the value of largest magnitude, the first of equals."""
    import torch

    peak = values[0]
    for value in values[1:]:
        peak = torch.where(value.abs() > peak.abs(), value, peak)
    return peak


def f16_bytes(halves: Tensor) -> Tensor:
    """float16 [n] as bytes [n, 2]."""
    import torch

    return halves.contiguous().view(torch.uint8).reshape(-1, 2)
