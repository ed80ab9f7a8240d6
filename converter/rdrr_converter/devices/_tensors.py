"""Arithmetic for the codecs in torch that gives the same bits as a scalar loop on the CPU.

Eager torch rounds the result of every operation and does not fuse operations, on CUDA and on the
CPU. Two of its operations are avoided: its sums have no defined order, and a quotient with a Python
number is computed as a product with a reciprocal.

A group is a column of a tensor [weights of a group, groups], so that each step of a sum is one
operation on all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IN_RANGE = 4194303.0
"""Magnitude from which on ggml's rounding no longer gives the nearest integer."""


def ordered_sum(terms: Tensor) -> Tensor:
    """Sum terms [..., weights, groups] over the weights in their order; return [..., groups]."""
    total = terms[..., 0, :].clone()
    for at in range(1, terms.shape[-2]):
        total += terms[..., at, :]
    return total


def divide(dividend: Tensor | float, divisor: Tensor | float) -> Tensor:
    """Return the correctly rounded quotient; one of the operands may be a number."""
    import torch

    if isinstance(dividend, float):
        assert not isinstance(divisor, float)
        dividend = torch.full_like(divisor, dividend)
    if isinstance(divisor, float):
        divisor = torch.full_like(dividend, divisor)
    return dividend / divisor


def sqrt_rn(values: Tensor) -> Tensor:
    """Return correctly rounded square roots; torch's float32 roots are not, on some CPUs."""
    import torch

    return torch.sqrt(values.double()).float()


def round_and_clamp(values: Tensor, low: float, high: float) -> Tensor:
    """Round to nearest integers, ties to even, and clamp to [low, high], all in place."""
    return values.round_().clamp_(low, high)


def exceeds_rounding_range(values: Tensor) -> Tensor:
    """Return where a value is NaN or too large for ggml's rounding."""
    return ~(values.abs() < IN_RANGE)


def largest_magnitude(values: Tensor) -> Tensor:
    """Return each column's value of largest magnitude, of [n, columns]; the first among equals."""
    import torch

    peak = values[0]
    for value in values[1:]:
        peak = torch.where(value.abs() > peak.abs(), value, peak)
    return peak


def f16_bytes(halves: Tensor) -> Tensor:
    """Return float16 values [n] as bytes [n, 2]."""
    import torch

    return halves.contiguous().view(torch.uint8).reshape(-1, 2)
