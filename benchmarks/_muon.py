"""Muon, an optimizer for matrices: steps of momentum whose singular values are all near 1.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks": Nesterov's momentum
of each matrix is made nearly orthogonal by five Newton-Schulz iterations of a polynomial of degree
5. torch has it too, in bfloat16, which is several times slower on CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS, _DECAY, _LEAST_NORM = 5, 0.01, 1e-7


class Muon(torch.optim.Optimizer):
    """An optimizer of matrices, [outputs, inputs].

    Args:
        matrices: The parameters, all of two dimensions.
        lr: Learning rate; the step of a matrix with more rows than columns is larger by the root of
            their ratio.
        momentum: Share of the mean of earlier gradients that is kept in each step.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 - as torch has it
        """Change each matrix by its step."""
        for group in self.param_groups:
            for matrix in group["params"]:
                momentum, state = group["momentum"], self.state[matrix]
                mean = state.setdefault("mean", torch.zeros_like(matrix))
                mean.lerp_(matrix.grad, 1 - momentum)
                step = orthogonal(matrix.grad.lerp(mean, momentum))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * _DECAY)
                matrix.add_(step, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors, and singular values near 1."""
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (x.norm() + _LEAST_NORM)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(
            x, torch.addmm(gram, gram, gram, beta=_CUBIC, alpha=_QUINTIC), x, beta=_LINEAR
        )
    return x if matrix.shape[0] <= matrix.shape[1] else x.T
