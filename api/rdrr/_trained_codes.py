"""The training of codes: blocks whose scales and minimums stay, while their codes move.

A code is held as a real number, which the model sees rounded; gradients pass the rounding unchanged
(straight-through). It begins with the source's value on the grid of its block, so that first those
codes move that were nearly a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from rdrr_converter.encode.row_threads import by_rows
from rdrr_format.codecs import CODECS
from rdrr_format.encoding import stored_rows
from rdrr_format.errors import UsageError
from rdrr_format.layouts import Layout, geometry
from rdrr_manifests.graph import Graph
from rdrr_manifests.graph.ops import LatentAttention, Stateful
from rdrr_runtime.reference.threads import memory_of
from torch import Tensor

from rdrr._refining import F32, Bytes, Draft

STEPS, CHECKS = 300, 6
"""Steps of a training, and how often it is checked on windows that are held out."""

RATE, WARMUP = 3e-3, 20
"""Largest step of a code of 4 bits, and the number of steps until then."""

PATIENCE = 3
"""Checks without a better result after which a training ends."""

GROUP = 16
"""Weights that have the same scale in all types."""

NEAR = 0.499
"""How far a code may begin from the integer to which it is rounded."""

WEIGHT_BYTES = 32
"""Memory of a weight: in the source, its code and value, gradient and two moments, and a copy."""

WINDOWS_OF_STEP = {"cpu": 8, "cuda": 32}

LOGITS = 1 << 27
"""Logits of the windows that are computed at once on the CPU."""

LOGIT_MEMORY = 320
"""Bytes of a CUDA device's memory for each logit computed at once: 8 copies take a tenth of it."""

MOMENTUM, VARIANCE, TINY = 0.9, 0.99, 1e-15
"""Of Adam: how much of the averages stays, and what is added to a root. Gradients of single codes
are far below the usual 1e-8."""

Trained = Mapping[str, "Codes"]
"""The codes to train, by the name of their tensor."""

Loss = Callable[[Tensor, Mapping[str, Tensor], bool], Tensor]
"""Returns the sum of the losses of some windows with the given values of the trained tensors; the
last argument says whether gradients are needed."""


@dataclass(frozen=True)
class Task:
    """What a training has to do.

    Attributes:
        trained: The codes to train, by the name of their tensor.
        loss: The loss to lower.
        windows: Windows to train on, [windows, ...].
        held_out: Windows to check on, [windows, ...].
        pass_texts: Windows that are computed at once.
    """

    trained: Trained
    loss: Loss
    windows: Tensor
    held_out: Tensor
    pass_texts: int


@dataclass(frozen=True)
class Outcome:
    """What a training has reached.

    Attributes:
        before: Mean loss on the windows that are held out.
        after: The same with the best codes; equal to `before` if nothing was gained.
        steps: Number of steps.
    """

    before: float
    after: float
    steps: int

    @property
    def is_better(self) -> bool:
        """Whether anything was gained."""
        return self.after < self.before


class Codes:
    """The codes of a tensor as real numbers, and the grid on which they lie.

    Args:
        draft: The draft with the tensor.
        name: Name of the tensor.
        stored: The blocks with which the training begins, uint8 [size].

    Attributes:
        reals: The codes, float32 [stored rows, groups, GROUP].
        rate: Largest step of a code.
        best: The best codes so far, uint8 in the shape of `reals`.
    """

    def __init__(self, draft: Draft, name: str, stored: Bytes) -> None:
        tensor = draft.package.tensor(name)
        dtype, self._layout, self._shape = (
            tensor.parsed_dtype(),
            tensor.parsed_layout(),
            tensor.shape,
        )
        self._geometry = geometry(dtype, self._shape, self._layout)
        self._codec, columns = CODECS[dtype.name], self._geometry.row_elements
        self._stored = stored.reshape(self._geometry.rows, -1)

        def decoded(stored: Bytes) -> tuple[F32, F32, F32]:
            lowest, step = self._codec.grid(stored, columns)
            values = self._codec.dequantize(stored, columns)
            return values, lowest[:, ::GROUP].copy(), step[:, ::GROUP].copy()

        values, lowest, step = by_rows(decoded, self._stored)
        source = np.ascontiguousarray(stored_rows(draft.source_values(name), self._layout))
        self._lowest, self._step = (
            torch.from_numpy(grid).to(draft.device).unsqueeze(-1) for grid in (lowest, step)
        )
        self._highest = self._codec.levels - 1
        # Whatever chose the codes, the training begins with them.
        codes = self._on_grid(values).round_()
        reals = self._on_grid(source).clamp_(codes - NEAR, codes + NEAR)
        self.reals = torch.where(self._step == 0, codes, reals)
        self.rate = RATE * self._highest / 15
        self.best = self.codes()
        self._mean, self._variance = (torch.zeros_like(self.reals) for _ in range(2))
        self._steps = 0

    def codes(self) -> Tensor:
        """Return the codes, uint8 in the shape of `reals`."""
        return self.reals.round().to(torch.uint8)

    def values(self) -> Tensor:
        """Return the weights of the rounded codes in their logical shape."""
        return self._logical(self._rows(self.reals.round()))

    def descend(self, gradient: Tensor, factor: float) -> None:
        """Move the codes against a gradient by a step of Adam, within the range of the type.

        (`torch.optim` imports a compiler, in 8 seconds, and holds the gradients of all tensors.)

        Args:
            gradient: That of the values, which passes the rounding unchanged.
            factor: Factor on `rate`.
        """
        rows = gradient.T if self._layout is Layout.COLUMN else gradient
        gradient = self._grouped(rows.reshape(self._geometry.rows, -1)) * self._step
        self._steps += 1
        self._mean.lerp_(gradient, 1 - MOMENTUM)
        self._variance.mul_(VARIANCE).addcmul_(gradient, gradient, value=1 - VARIANCE)
        root = (self._variance.sqrt() / (1 - VARIANCE**self._steps) ** 0.5).add_(TINY)
        step = factor * self.rate / (1 - MOMENTUM**self._steps)
        self.reals.addcdiv_(self._mean, root, value=-step).clamp_(0, self._highest)

    def stored(self) -> Bytes:
        """Return the blocks with the best codes."""
        rows = self._rows(self.best.float()).cpu().numpy()
        (stored,) = by_rows(
            lambda *parts: (self._codec.requantize(*parts),),
            self._stored,
            np.ascontiguousarray(rows),
        )
        return stored

    def _on_grid(self, rows: F32) -> Tensor:
        """Return values [stored rows, elements] as codes in the shape of `reals`."""
        side = self._grouped(torch.from_numpy(rows).to(self._step.device))
        safe = torch.where(self._step == 0, 1, self._step)
        return ((side - self._lowest) / safe).clamp_(0, self._highest)

    def _rows(self, codes: Tensor) -> Tensor:
        values = torch.addcmul(self._lowest, self._step, codes).flatten(1)
        return values[:, : self._geometry.row_elements]

    def _logical(self, rows: Tensor) -> Tensor:
        return rows.T if self._layout is Layout.COLUMN else rows.reshape(self._shape)

    def _grouped(self, rows: Tensor) -> Tensor:
        missing = -rows.shape[1] % GROUP
        groups: Tensor = torch.nn.functional.pad(rows, (0, missing)).unflatten(1, (-1, GROUP))
        return groups


class _Training:
    """A training that is under way."""

    def __init__(self, task: Task, device: str) -> None:
        self._task, self._device = task, device

    def run(self) -> Outcome:
        first = best = self._check()
        batches, done, misses = self._batches(), 0, 0
        while done < STEPS and misses < PATIENCE:
            for _ in range(min(math.ceil(STEPS / CHECKS), STEPS - done)):
                self._step(next(batches), _rate(done))
                done += 1
            loss, misses = self._check(), misses + 1
            if loss < best:
                best, misses = loss, 0
                for codes in self._task.trained.values():
                    codes.best = codes.codes()
        return Outcome(first, best, done)

    def _batches(self) -> Iterator[Tensor]:
        """Yield the windows of each step, all windows in a random order before any comes again."""
        generator = torch.Generator("cpu").manual_seed(0)
        windows = self._task.windows
        size = min(WINDOWS_OF_STEP[self._device], len(windows))
        while True:
            order = torch.randperm(len(windows), generator=generator)
            for part in order.split(size):
                if len(part) == size:
                    yield windows[part.to(windows.device)]

    def _step(self, windows: Tensor, factor: float) -> None:
        trained = self._task.trained
        leaves = {name: codes.values().requires_grad_() for name, codes in trained.items()}
        for part in windows.split(self._task.pass_texts):
            loss = self._task.loss(part, leaves, True)
            (loss / windows.numel()).backward()
        for name, codes in trained.items():
            gradient = leaves.pop(name).grad
            # No token of the windows was routed to an expert that has none.
            if gradient is not None:
                codes.descend(gradient, factor)

    def _check(self) -> float:
        """Return the mean loss on the windows that are held out."""
        held_out = self._task.held_out
        values = {name: codes.values() for name, codes in self._task.trained.items()}
        parts = held_out.split(self._task.pass_texts)
        return sum(float(self._task.loss(part, values, False)) for part in parts) / held_out.numel()


def train(draft: Draft, names: Sequence[str], task: Callable[[Trained], Task]) -> Outcome:
    """Train codes, and store them in the draft if that lowers the loss on what is held out.

    Blocks that a method before has left are not always the better beginning: a compensated model
    has a lower loss, and can end with a higher one. So the training also begins with the blocks
    without that method, and what ends lower is kept.

    Args:
        draft: The draft.
        names: Tensors whose codes are trained.
        task: Returns what to do with the codes of all of them.
    """
    starts = [draft.stored, draft.package.read][: 1 + any(map(draft.is_replaced, names))]
    outcomes: list[Outcome] = []
    for start in starts:
        least = min((outcome.after for outcome in outcomes), default=math.inf)
        outcomes.append(_train(draft, {name: start(name) for name in names}, task, least))
    best = min(outcomes, key=lambda outcome: outcome.after)
    return replace(best, before=outcomes[0].before)


def _train(
    draft: Draft, starts: Mapping[str, Bytes], task: Callable[[Trained], Task], least: float
) -> Outcome:
    """Train codes, and store them in the draft if the loss ends below `least` and its beginning."""
    trained = {name: Codes(draft, name, stored) for name, stored in starts.items()}
    outcome = _Training(task(trained), draft.device).run()
    if outcome.after < min(outcome.before, least):
        for name, codes in trained.items():
            draft.replace(name, codes.stored())
    return outcome


def split(ids: Tensor, held_out: int) -> tuple[Tensor, Tensor]:
    """Return which windows to train on and which to hold out, two int vectors.

    Windows of a text come in its order; what is held out is to be from all over it.

    Args:
        ids: Token ids, int [windows, tokens].
        held_out: Windows to hold out, or fewer if there are not many.

    Raises:
        UsageError: There are less than two windows.
    """
    if len(ids) < 2:
        raise UsageError(
            "the text is too short to train on a part of it and to check on another",
            expected=f"at least {2 * ids.shape[1]} tokens",
            found=ids.numel(),
        )
    is_held_out = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    is_held_out[:: len(ids) // min(held_out, len(ids) // 2)] = True
    numbers = torch.arange(len(ids), device=ids.device)
    return numbers[~is_held_out], numbers[is_held_out]


def _rate(step: int) -> float:
    """Return the factor on the rate of a step: a short rise, then half a cosine to zero."""
    return min(1.0, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / STEPS)) / 2


def texts_at_once(graph: Graph, length: int, device: str) -> int:
    """Return how many windows of `length` tokens a training computes at once."""
    if any(isinstance(op, LatentAttention | Stateful) for op in graph.ops):
        return 1
    logits = memory_of(device) // LOGIT_MEMORY if device == "cuda" else LOGITS
    return max(1, logits // (length * graph.vocab_size))


def is_trained(draft: Draft, name: str) -> bool:
    """Return whether a tensor has blocks whose codes can be trained."""
    dtype = draft.package.tensor(name).parsed_dtype()
    return dtype.is_block and CODECS[dtype.name].levels > 0
