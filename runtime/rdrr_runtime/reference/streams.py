"""The ops on parallel residual streams (AltUp), and sparse activations, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def sparsify(x: Tensor, multiplier: float) -> Tensor:
    """Return max(x - (mean + multiplier * deviation), 0) over the last axis."""
    mean = x.mean(dim=-1, keepdim=True)
    deviation = (x - mean).square().mean(dim=-1, keepdim=True).sqrt()
    return torch.relu(x - (mean + multiplier * deviation))


def append_stream(x: Tensor, y: Tensor, floor: float) -> Tensor:
    """Return [x, y], where y is scaled to the root mean square of the first stream of x."""
    wanted = x[:, : y.shape[-1]].square().mean(dim=-1, keepdim=True).sqrt()
    current = y.square().mean(dim=-1, keepdim=True).clamp(min=floor).sqrt()
    return torch.cat([x, y * wanted / current], dim=-1)


def stream_coefficients(x: Tensor, router: Tensor, weight: Tensor, factor: float) -> Tensor:
    """Return tanh(factor * x R^T) W^T: [rows, K], [n, K], [c, n] -> [rows, c]."""
    return torch.tanh(factor * (x @ router.T)) @ weight.T


def mix_streams(x: Tensor, coefficients: Tensor, count: int) -> Tensor:
    """Return x_j + sum_i c[j, i] x_i: [rows, count * width], [rows, count^2]."""
    streams = x.unflatten(-1, (count, -1))
    mixed = torch.einsum("rji,riw->rjw", coefficients.unflatten(-1, (count, count)), streams)
    out: Tensor = (streams + mixed).flatten(-2)
    return out


def correct_streams(
    x: Tensor, update: Tensor, coefficients: Tensor, count: int, active: int
) -> Tensor:
    """Return x_j + (1 + c[j]) (update - x_active): [rows, count * width]."""
    streams = x.unflatten(-1, (count, -1))
    change = (update - streams[:, active]).unsqueeze(1)
    out: Tensor = (streams + (1.0 + coefficients).unsqueeze(-1) * change).flatten(-2)
    return out


def add_to_streams(x: Tensor, update: Tensor, count: int, first: int) -> Tensor:
    """Return x_j + update from stream `first` on: [rows, count * width]."""
    streams = x.unflatten(-1, (count, -1)).clone()
    streams[:, first:] += update.unsqueeze(1)
    out: Tensor = streams.flatten(-2)
    return out


def mean_of_streams(x: Tensor, count: int) -> Tensor:
    """Return the mean of the streams: [rows, count * width] -> [rows, width]."""
    out: Tensor = x.unflatten(-1, (count, -1)).mean(dim=-2)
    return out
