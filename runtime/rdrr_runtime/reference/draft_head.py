"""The draft head of a model on the CPU, which shares the weights of the model's backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from rdrr_manifests.graph import Graph
from rdrr_manifests.package import Package

from rdrr_runtime.reference import ops
from rdrr_runtime.reference.forward import ReferenceModel
from rdrr_runtime.reference.run import KeptHidden
from rdrr_runtime.sampling.finite import check_logits

F32 = npt.NDArray[np.float32]

PREFILL_ROWS = 256
"""Most prompt tokens of one pass; bounds the memory of the attention scores."""


def most_probable(
    logits: Callable[[Sequence[int], int], F32], ids: Sequence[int], base: int, count: int
) -> list[int]:
    """Run `ids`, feed back the most probable token each time, and return `count` new ids.

    Args:
        logits: Runs ids from a slot on and returns the logits after the last one.
        ids: Token ids.
        base: Slot of the first id.
        count: Number of new ids.

    Raises:
        GenerationError: A logit is not finite.
    """
    out: list[int] = []
    for _ in range(count):
        values = logits(ids, base)
        check_logits(values)
        base += len(ids)
        out.append(ops.argmax(torch.from_numpy(values[0])))
        ids = out[-1:]
    return out


class CpuDraftHead:
    """A draft head in torch, see `rdrr_runtime.draft_backend.DraftHead`.

    Args:
        package: The package of the model.
        graph: The graph of the head.
        weights: The weights of the model, of which the head shares some.
        context: Slots of the head's cache.

    Attributes:
        hidden: Where the model keeps its hidden states.
        rows: Most rows of a call.
        seen: See `DraftHead.seen`.
    """

    def __init__(
        self,
        package: Package,
        graph: Graph,
        weights: Mapping[str, torch.Tensor],
        context: int,
    ) -> None:
        self.rows = min(PREFILL_ROWS, context)
        self.seen: list[int] = []
        states = torch.zeros(self.rows, graph.hidden_size)
        draft_weights = {
            use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name)))
            for use in graph.weights()
            if use.name not in weights
        }
        self.hidden = KeptHidden(states)
        kept = KeptHidden(states, ahead=1)
        self._model = ReferenceModel(graph, {**weights, **draft_weights}, context, hidden=kept)

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run rows only to store their keys and values."""
        self.logits(ids, base)

    def logits(self, ids: Sequence[int], base: int) -> F32:
        """Return the logits after the last row, f32 [1, vocab], see `DraftHead.logits`."""
        logits_of_row: F32 = self._model.forward(ids, base).numpy()
        return logits_of_row

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run rows, feed back the most probable token of each pass, and return `count` new ids.

        Raises:
            GenerationError: A logit is NaN.
        """
        return most_probable(self.logits, ids, base, count)

    def close(self) -> None:
        """Do nothing: Python frees the memory of this backend."""
