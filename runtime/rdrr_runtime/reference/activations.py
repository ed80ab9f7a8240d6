"""Activation functions and gates in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from rdrr_manifests.graph.ops import Clamp
from torch import Tensor
from torch.nn import functional

from rdrr_runtime.reference.rows import linear


def gated_activation(
    gate: Tensor, up: Tensor, activation: str, clamp: Clamp | None = None
) -> Tensor:
    """Return activation(gate) * up, where the activation is one of `ACTIVATIONS`.

    Args:
        gate: The gate.
        up: What is multiplied by it.
        activation: Name of the activation.
        clamp: Return the clamped SwiGLU instead.

    Raises:
        KeyError: The activation has another name.
    """
    if clamp is not None:
        gate = gate.clamp(max=clamp.limit)
        up = up.clamp(-clamp.limit, clamp.limit)
        return gate * torch.sigmoid(clamp.alpha * gate) * (up + clamp.up_offset)
    return ACTIVATIONS[activation](gate) * up


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return functional.silu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    return functional.gelu(x, approximate="tanh")


def gelu_erf(x: Tensor) -> Tensor:
    """Return GELU, x times the normal distribution function (arXiv 1606.08415)."""
    return functional.gelu(x)


def relu(x: Tensor) -> Tensor:
    """Return max(x, 0)."""
    return x.clamp(min=0.0)


def relu2(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al. 2021, arXiv 2109.08668)."""
    return relu(x).square()


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """Return xIELU (Huang and Schlag 2024, arXiv 2411.13010), whose parameters are trained.

    With a = softplus(alpha_p) and b = beta + softplus(alpha_n), it is a x^2 + beta x for x > 0, and
    b (e^min(x, eps) - 1 - x) + beta x otherwise.
    """
    above = torch.nn.functional.softplus(alpha_p) * x * x
    below = (beta + torch.nn.functional.softplus(alpha_n)) * (
        torch.expm1(torch.minimum(x, eps)) - x
    )
    return torch.where(x > 0, above, below) + beta * x


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": silu,
        "gelu_tanh": gelu_tanh,
        "gelu_erf": gelu_erf,
        "relu": relu,
        "relu2": relu2,
        "sigmoid": torch.sigmoid,
    }
)
"""The activations of the graph's ops, by name."""


def sigmoid_gate(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
    """Return branch * sigmoid(x w): [rows, K], [rows, N], [1, K] -> [rows, N]."""
    return branch * torch.sigmoid(linear(x, weight))


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap)."""
    return cap * torch.tanh(x / cap)
