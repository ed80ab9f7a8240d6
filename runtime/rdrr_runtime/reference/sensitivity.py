"""How much the errors of each weight change what a model predicts, from gradients of the reference.

For small errors e of the weights, the Kullback-Leibler divergence of the predictions is e'Fe / 2,
where F is the Fisher information: the mean of g g' over tokens that are drawn from the model's own
predictions, with g the gradient of their log-probability. Only the diagonal is kept, and of it only
the sums over the rows and columns of each matrix: F[n, k] is taken as rows[n] columns[k] / total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from rdrr_manifests.graph import Graph
from torch import Tensor

from rdrr_runtime.reference.forward import ReferenceModel
from rdrr_runtime.reference.rows import sampled

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The diagonal of a matrix's Fisher information, summed over the tokens of a text.

    Attributes:
        rows: Sums over each row of the weight, float64 [N].
        columns: Sums over each column of the weight, float64 [K].
    """

    rows: F64
    columns: F64

    def __add__(self, other: Sensitivity) -> Sensitivity:
        return Sensitivity(self.rows + other.rows, self.columns + other.columns)


@dataclass(frozen=True)
class WindowSensitivity:
    """What one window of a text says.

    Attributes:
        loss: Sum of -log(probability) of its tokens but the first, in nats.
        matrices: The sensitivity of each matrix, by its name.
    """

    loss: float
    matrices: Mapping[str, Sensitivity]


def sensitivity(
    graph: Graph, weights: Mapping[str, Tensor], window: Sequence[int], seed: int
) -> WindowSensitivity:
    """Measure the sensitivities of all matrices over one window of a text.

    Tokens are drawn independently given the text before them, so the square of the gradient of
    the whole window has the mean of the sum over its tokens.

    Args:
        graph: The graph of the model.
        weights: Tensors by name, float32, in their logical shapes.
        window: Token ids, two or more.
        seed: Seed of the drawn tokens.
    """
    matrices = [name for name, weight in weights.items() if weight.dim() == 2]
    leaves = {name: weights[name].detach().requires_grad_() for name in matrices}
    gathered: dict[str, Sensitivity] = {}
    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(_collect(gathered, name))
    ids = window[:-1]
    # A model of its own: the gradients of a window must not reach into the cache of another.
    model = ReferenceModel(graph, {**weights, **leaves}, len(ids), differentiable=True)
    logs = torch.log_softmax(model.forward(ids, 0, all_rows=True), dim=-1)
    samples = sampled(logs.detach(), torch.Generator("cpu").manual_seed(seed))
    with model.limited_threads(len(ids)):
        logs.gather(1, samples).sum().backward()
    for name in set(leaves) - set(gathered):  # experts that no token was routed to
        rows, columns = leaves[name].shape
        gathered[name] = Sensitivity(np.zeros(rows), np.zeros(columns))
    targets = torch.tensor(window[1:], device=logs.device)
    loss = -logs.detach().gather(1, targets[:, None]).sum()
    return WindowSensitivity(float(loss), gathered)


def _collect(gathered: dict[str, Sensitivity], name: str) -> Callable[[Tensor], None]:
    """Return a hook that reduces a gradient as soon as it is complete, and frees it."""

    def reduce(leaf: Tensor) -> None:
        assert leaf.grad is not None, "the hook runs once the gradient is there"
        squares = leaf.grad.square()
        gathered[name] = Sensitivity(
            squares.sum(dim=1, dtype=torch.float64).cpu().numpy(),
            squares.sum(dim=0, dtype=torch.float64).cpu().numpy(),
        )
        leaf.grad = None

    return reduce
