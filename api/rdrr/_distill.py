"""The method `distill` of `quality`: blocks trained until the model predicts what its source does.

The scales and minimums of the blocks stay, and the codes are trained. (Trained scales with fixed
codes gained two thirds as much, and both together less than the codes alone.) A model that fits
into memory is trained end to end, a larger one stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from rdrr_format.errors import UsageError
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import Head
from rdrr_runtime.reference.stack import TextStack
from rdrr_runtime.reference.threads import memory_of
from torch import Tensor

from rdrr._calibration import calibration_windows
from rdrr._distill_stages import distill_stages, largest_stage
from rdrr._refining import Draft
from rdrr._trained_codes import (
    WEIGHT_BYTES,
    Outcome,
    Task,
    Trained,
    is_trained,
    split,
    texts_at_once,
    train,
)

WEIGHTS_SHARE = 0.75
"""Share of the memory for what training holds of weights; the rest is for values and logits."""

WINDOWS, HELD_OUT = 1024, 32
"""Windows in all, and how many of them are held out."""


def check_predicts(graph: Graph) -> None:
    """Check that a model predicts tokens.

    Raises:
        UsageError: It does not.
    """
    if not (graph.is_causal and isinstance(graph.ops[-1], Head)):
        raise UsageError(
            "`quality` distill compares predictions of tokens, and this model makes none",
            expected="a causal model with a head",
            hint="`quality` best, gptq or both",
        )


def distill(draft: Draft) -> str:
    """Train the codes of all matrices that are quantized to blocks."""
    graph = draft.package.graph
    weights = sum(math.prod(use.shape) for use in graph.weights())
    is_whole = weights * WEIGHT_BYTES <= _memory(draft.device)
    if not is_whole:
        _check_memory(draft)
    with _fast_products():
        return _Whole(draft).run() if is_whole else distill_stages(draft)


def _check_memory(draft: Draft) -> None:
    """Refuse a model whose stages do not fit one by one, before minutes of sampling."""
    needed = largest_stage(draft.package.graph) * WEIGHT_BYTES
    memory = _memory(draft.device)
    if needed > memory:
        raise UsageError(
            "`quality` distill trains the weights of a stage at once, and they do not fit",
            expected=f"{needed:,} bytes of memory on {draft.device}",
            found=f"{memory:,}",
            hint="`quality` gptq takes one matrix at a time",
        )


def _memory(device: str) -> int:
    """Return the bytes of memory for weights; what is free now may not decide what is written."""
    return int(WEIGHTS_SHARE * memory_of(device))


@contextmanager
def _fast_products() -> Iterator[None]:
    """Let CUDA round the factors of products to TF32, which loses nothing that training notices."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Whole:
    """The training of a whole model, end to end.

    Args:
        draft: The draft whose blocks are replaced.
    """

    def __init__(self, draft: Draft) -> None:
        graph, names = draft.package.graph, [use.name for use in draft.package.graph.weights()]
        device = draft.device
        self._ids = calibration_windows(draft.source, draft.text, draft.device, WINDOWS)
        self._windows, self._held_out = (self._ids[part] for part in split(self._ids, HELD_OUT))
        self._draft = draft
        self._trained = [name for name in names if is_trained(draft, name)]
        self._source = {
            name: torch.from_numpy(np.ascontiguousarray(draft.source_values(name))).to(device)
            for name in names
        }
        self._values = {
            name: torch.from_numpy(np.ascontiguousarray(draft.values(name))).to(device)
            for name in names
            if name not in self._trained
        }
        self._pass_texts = texts_at_once(graph, self._ids.shape[1], device)

    def run(self) -> str:
        """Train, and return a note for the user."""
        if not self._trained:
            return "distill: no matrix has blocks whose codes can be trained"
        return self._note(train(self._draft, self._trained, self._task))

    def _task(self, codes: Trained) -> Task:
        return Task(codes, self._divergence, self._windows, self._held_out, self._pass_texts)

    def _note(self, outcome: Outcome) -> str:
        text = "of the given text" if self._draft.text is not None else "that the model wrote"
        count = len(self._trained)
        what = f"codes of {count} matrices trained" if outcome.is_better else "nothing gained"
        return (
            f"distill: {what} in {outcome.steps} steps on {self._windows.numel():,} tokens {text}; "
            f"divergence on held-out windows {outcome.before:.3g} nats a token before, "
            f"{outcome.after:.3g} after"
        )

    def _divergence(
        self, windows: Tensor, values: Mapping[str, Tensor], differentiable: bool
    ) -> Tensor:
        """Return the sum of the divergences of all predictions from those of the source."""
        graph, shape, device = self._draft.package.graph, windows.shape, windows.device
        logits = TextStack(graph, self._source, *shape, device=device).logits(windows)
        source = torch.log_softmax(logits, -1)
        weights = {**self._values, **values}
        stack = TextStack(graph, weights, *shape, device=device, differentiable=differentiable)
        with torch.set_grad_enabled(differentiable):
            return torch.nn.functional.kl_div(
                torch.log_softmax(stack.logits(windows), -1),
                source,
                reduction="sum",
                log_target=True,
            )
