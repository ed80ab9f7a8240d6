"""Training stage by stage, for a model that does not fit into memory with all that training needs.

A stage is a part of the graph behind which a single value goes on: attention with its norm and
residual, or a feed-forward network. Its codes are trained until it gives, for what the stored
stages before it compute, what the source gives for its own values. So each stage also makes up for
what those before it have lost, and only its weights and the values between stages are in memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import (
    Attention,
    Embed,
    Head,
    LatentAttention,
    Op,
    uses,
    values_read,
)
from rdrr_runtime.reference.stack import TextStack
from torch import Tensor

from rdrr._calibration import calibration_windows
from rdrr._refining import F32, Draft
from rdrr._trained_codes import Outcome, Task, Trained, is_trained, split, texts_at_once, train

HELD_OUT = 32
"""Windows that are held out."""

PASS_TEXTS = 8
"""Windows that are computed at once."""

_TINY = 1e-30


@dataclass(frozen=True)
class Stage:
    """A part of the graph.

    Attributes:
        ops: The ops, in order.
        out: The value that goes on.
    """

    ops: tuple[Op, ...]
    out: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that it reads."""
        return tuple(dict.fromkeys(use.name for op in self.ops for use in uses(op)))


def stages(graph: Graph) -> Iterator[Stage]:
    """Cut a graph where a single value goes on, and no cache."""
    last: dict[object, int] = {}
    for at, op in enumerate(graph.ops):
        last |= dict.fromkeys(_read(op), at)
    live: set[object] = set()
    first = 0
    for at, op in enumerate(graph.ops):
        live |= {op.out, *_read(op)}
        live = {value for value in live if last.get(value, -1) > at}
        is_end = at + 1 == len(graph.ops)
        if is_end or (len(live) == 1 and all(isinstance(value, str) for value in live)):
            out = op.out if is_end else str(next(iter(live)))
            yield Stage(graph.ops[first : at + 1], out)
            first = at + 1


def _read(op: Op) -> tuple[object, ...]:
    """Return what an op reads of what others compute: values, and the number of its cache."""
    caches = (op.layer,) if isinstance(op, Attention | LatentAttention) else ()
    return (*values_read(op), *caches)


def largest_stage(graph: Graph) -> int:
    """Return the number of weights of the largest stage."""
    shapes = {use.name: use.shape for use in graph.weights()}
    return max(sum(math.prod(shapes[name]) for name in stage.names) for stage in stages(graph))


def distill_stages(draft: Draft) -> str:
    """Train the codes of a model stage by stage, and return a note for the user."""
    return _Walk(draft).run()


@dataclass(frozen=True)
class _Side:
    """A stage with the weights of the source, or with the stored ones.

    Attributes:
        graph: The graph of the model.
        stage: The stage.
        weights: Its tensors by name.
        inputs: The value that the stage before it gives, [windows, tokens, width]; none for the
            first stage.
    """

    graph: Graph
    stage: Stage
    weights: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]

    def outputs(
        self,
        ids: Tensor,
        windows: Tensor,
        values: Mapping[str, Tensor] = MappingProxyType({}),
        *,
        differentiable: bool = False,
    ) -> Tensor:
        """Return what the stage gives for some windows, [windows, tokens, width].

        Args:
            ids: Token ids of all windows, int [windows, tokens].
            windows: Numbers of the windows to compute.
            values: Tensors that replace those of `weights`.
            differentiable: Whether gradients of the result can be computed.
        """
        part = ids[windows]
        weights = {**self.weights, **values}
        stack = TextStack(
            self.graph, weights, *part.shape, device=ids.device, differentiable=differentiable
        )
        inputs = {name: tensor[windows].flatten(0, 1) for name, tensor in self.inputs.items()}
        out: Tensor = stack.through(self.stage.ops, part, inputs)[self.stage.out]
        return out.reshape(*part.shape, -1)


class _Walk:
    """The walk through a model.

    Args:
        draft: The draft whose blocks are replaced.
    """

    def __init__(self, draft: Draft) -> None:
        graph = draft.package.graph
        self._draft, self._graph = draft, graph
        self._ids = calibration_windows(draft.source, draft.text, draft.device)
        self._windows, self._held_out = split(self._ids, HELD_OUT)
        # A weight that several ops read would change in one stage for another one, too.
        self._readers = Counter(use.name for op in graph.ops for use in uses(op))
        # The rows of a table are not multiplied: the codes nearest to the source are the best.
        self._tables = {use.name for op in graph.ops if isinstance(op, Embed) for use in uses(op)}
        at_once = texts_at_once(graph, self._ids.shape[1], draft.device)
        self._pass_texts = min(PASS_TEXTS, at_once)

    def run(self) -> str:
        """Train all stages, and return a note for the user."""
        outcomes: list[Outcome] = []
        stored: Mapping[str, Tensor] = {}
        source: Mapping[str, Tensor] = {}
        for stage in stages(self._graph):
            sides = [
                _Side(self._graph, stage, _tensors(read, stage.names, self._draft.device), values)
                for read, values in (
                    (self._draft.values, stored),
                    (self._draft.source_values, source),
                )
            ]
            if any(self._takes(name) for name in stage.names):
                outcomes.append(self._train(stage, *sides))
            if isinstance(stage.ops[-1], Head):
                break
            weights = _tensors(self._draft.values, stage.names, self._draft.device)
            trained = _Side(self._graph, stage, weights, stored)
            stored, source = self._advance(trained), self._advance(sides[1])
        return self._note(outcomes)

    def _takes(self, name: str) -> bool:
        is_table = name in self._tables
        return self._readers[name] == 1 and not is_table and is_trained(self._draft, name)

    def _train(self, stage: Stage, stored: _Side, source: _Side) -> Outcome:
        def loss(windows: Tensor, values: Mapping[str, Tensor], differentiable: bool) -> Tensor:
            expected = source.outputs(self._ids, windows)
            outputs = stored.outputs(self._ids, windows, values, differentiable=differentiable)
            with torch.set_grad_enabled(differentiable):
                return _loss(outputs, expected, stage)

        def task(codes: Trained) -> Task:
            return Task(codes, loss, self._windows, self._held_out, self._pass_texts)

        return train(self._draft, [*filter(self._takes, stage.names)], task)

    def _advance(self, side: _Side) -> dict[str, Tensor]:
        """Return the value behind a stage for all windows, [windows, tokens, width]."""
        numbers = torch.arange(len(self._ids), device=self._ids.device)
        parts = numbers.split(self._pass_texts)
        return {side.stage.out: torch.cat([side.outputs(self._ids, part) for part in parts])}

    def _note(self, outcomes: Sequence[Outcome]) -> str:
        if not outcomes:
            return "distill: no matrix has blocks whose codes can be trained"
        text = "of the given text" if self._draft.text is not None else "that the model wrote"
        better = [outcome for outcome in outcomes if outcome.is_better]
        left = math.prod(outcome.after / outcome.before for outcome in better)
        gained = 100 * (1 - left ** (1 / max(1, len(better))))
        return (
            f"distill: the model is trained stage by stage, as it does not fit into memory with "
            f"all that training needs; the error on held-out windows fell in {len(better)} of "
            f"{len(outcomes)} stages, there by {gained:.0f} % on average, on "
            f"{self._windows.numel() * self._ids.shape[1]:,} tokens {text}"
        )


def _loss(outputs: Tensor, expected: Tensor, stage: Stage) -> Tensor:
    """Return the sum of the losses of windows: of each the mean over its tokens.

    Predictions are compared by their divergence. Other rows are compared by their squared error
    relative to the row, because a norm reads them next, and some are a thousand times as large as
    others.
    """
    if isinstance(stage.ops[-1], Head):
        logs, expected = torch.log_softmax(outputs, -1), torch.log_softmax(expected, -1)
        rows = torch.nn.functional.kl_div(logs, expected, reduction="none", log_target=True).sum(-1)
    else:
        rows = (outputs - expected).square().sum(-1) / expected.square().sum(-1).clamp_min(_TINY)
    return rows.mean(-1).sum()


def _tensors(read: Callable[[str], F32], names: Sequence[str], device: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(read(name))).to(device) for name in names}
