"""The ops on parallel residual streams (AltUp), and sparse activations, in plain torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rdrr_manifests.graph.ops import CombineStreams
from torch import Tensor


def sparsify(x: Tensor, multiplier: float) -> Tensor:
    """Return max(x - (mean + multiplier * deviation), 0) over the last axis."""
    mean = x.mean(dim=-1, keepdim=True)
    deviation = (x - mean).square().mean(dim=-1, keepdim=True).sqrt()
    return torch.relu(x - (mean + multiplier * deviation))


def append_stream(x: Tensor, y: Tensor, floor: float) -> Tensor:
    """Return [x, y], where y is scaled to the root mean square of the first stream of x."""
    magnitude = x[:, : y.shape[-1]].square().mean(dim=-1, keepdim=True).sqrt()
    current = y.square().mean(dim=-1, keepdim=True).clamp(min=floor).sqrt()
    return torch.cat([x, y * magnitude / current], dim=-1)


def stream_coefficients(x: Tensor, router: Tensor, weight: Tensor, factor: float) -> Tensor:
    """Return tanh(factor * x R^T) W^T: [rows, K], [n, K], [c, n] -> [rows, c]."""
    return torch.tanh(factor * (x @ router.T)) @ weight.T


def combine_streams(op: CombineStreams, values: Mapping[str, Tensor]) -> Tensor:
    """Return the streams of each row, mixed, corrected or with an update, or their mean."""
    streams = values[op.x].unflatten(-1, (op.count, -1))
    operands = [values[name] for name in (op.update, op.coefficients) if name is not None]
    if op.form == "mean":
        mean: Tensor = streams.mean(dim=-2)
        return mean
    if op.form == "mix":
        coefficients = operands[0].unflatten(-1, (op.count, op.count))
        changes = torch.einsum("rji,riw->rjw", coefficients, streams)
    elif op.form == "correct":
        update, coefficients = operands
        change = (update - streams[:, op.stream]).unsqueeze(1)
        changes = (1.0 + coefficients).unsqueeze(-1) * change
    else:
        changes = torch.zeros_like(streams)
        changes[:, op.stream :] = operands[0].unsqueeze(1)
    out: Tensor = (streams + changes).flatten(-2)
    return out
