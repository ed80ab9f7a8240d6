"""The method `distill` of `quality`: blocks trained until the model predicts what its source does.

The scales and minimums of the blocks stay, and the codes are trained. A code is held as a real
number, which the model sees rounded; gradients pass the rounding unchanged (straight-through). It
begins with the source's value on the grid of its block, so that first those codes move that were
nearly a tie. (Trained scales with fixed codes gained two thirds as much, and both together less
than the codes alone.)
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from rdrr_format.codecs import CODECS
from rdrr_format.encoding import stored_rows
from rdrr_format.errors import UsageError
from rdrr_format.layouts import Layout, geometry
from rdrr_manifests.graph.ops import Head, LatentAttention, Stateful
from rdrr_runtime.reference.stack import TextStack
from torch import Tensor

from rdrr._calibration import calibration_windows
from rdrr._refining import Bytes, Draft

STEPS, CHECKS = 300, 6
"""Steps of the training, and how often it is checked on windows that are held out."""

WINDOWS, HELD_OUT = 1024, 32
"""Windows in all, and how many of them are held out."""

WINDOWS_OF_STEP = {"cpu": 8, "cuda": 32}

RATE, WARMUP = 3e-3, 20
"""Largest step of a code of 4 bits, and the number of steps until then."""

PATIENCE = 3
"""Checks without a better result after which the training ends."""

GROUP = 16
"""Weights that have the same scale in all types."""

WEIGHT_BYTES = 32
"""Memory of a weight: in the source, its code and value, their gradients, and two moments."""

LOGITS = 1 << 27
"""Logits of the windows that are computed at once."""


def distill(draft: Draft) -> str:
    """Train the codes of all matrices that are quantized to blocks."""
    graph = draft.package.graph
    if not (graph.is_causal and isinstance(graph.ops[-1], Head)):
        raise UsageError(
            "`quality` distill compares predictions of tokens, and this model makes none",
            expected="a causal model with a head",
        )
    _check_memory(draft)
    with torch.device(draft.device), _fast_products():
        return _Training(draft).run()


def _check_memory(draft: Draft) -> None:
    """Refuse a model that does not fit, before minutes of sampling."""
    weights = sum(math.prod(use.shape) for use in draft.package.graph.weights())
    memory = _memory(draft.device)
    if weights * WEIGHT_BYTES > memory:
        raise UsageError(
            "`quality` distill trains all weights at once, and they do not fit",
            expected=f"{weights * WEIGHT_BYTES:,} bytes of memory on {draft.device}",
            found=f"{memory:,}",
            hint="`quality` gptq takes one matrix at a time",
        )


def _memory(device: str) -> int:
    """Return the bytes of memory of a device of torch."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    if not hasattr(os, "sysconf"):  # Windows, which does not say it to Python
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def _fast_products() -> Iterator[None]:
    """Let CUDA round the factors of products to TF32, which loses nothing that training notices."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Codes:
    """The codes of a tensor as real numbers, and the grid on which they lie.

    Args:
        draft: The draft with the tensor.
        name: Name of the tensor.

    Attributes:
        reals: The codes, float32 [stored rows, groups, GROUP].
        rate: Largest step of a code.
    """

    def __init__(self, draft: Draft, name: str) -> None:
        tensor = draft.package.tensor(name)
        dtype, self._layout, self._shape = (
            tensor.parsed_dtype(),
            tensor.parsed_layout(),
            tensor.shape,
        )
        self._geometry = geometry(dtype, self._shape, self._layout)
        self._codec, columns = CODECS[dtype.name], self._geometry.row_elements
        self._stored = draft.stored(name).reshape(self._geometry.rows, -1)
        lowest, step = self._codec.grid(self._stored, columns)
        source = stored_rows(draft.source_values(name), self._layout)
        stored = self._codec.dequantize(self._stored, columns)
        safe = np.where(step == 0, np.float32(1), step)
        self._highest = self._codec.levels - 1
        codes, reals = (
            np.clip((values - lowest) / safe, 0, self._highest) for values in (stored, source)
        )
        # Whatever chose the codes, the training begins with them.
        codes = np.rint(codes)
        reals = np.where(step == 0, codes, np.clip(reals, codes - 0.499, codes + 0.499))
        self.reals = self._grouped(torch.from_numpy(reals).to(torch.get_default_device()))
        self._lowest, self._step = (
            torch.from_numpy(grid[:, ::GROUP].copy()).unsqueeze(-1).to(self.reals)
            for grid in (lowest, step)
        )
        self.rate = RATE * self._highest / 15
        self.best = self.codes()

    def codes(self) -> Tensor:
        """Return the codes, uint8 in the shape of `reals`."""
        return self.reals.round().to(torch.uint8)

    def values(self) -> Tensor:
        """Return the weights of the rounded codes in their logical shape."""
        return self._logical(self._rows(self.reals.round()))

    def descend(self, gradient: Tensor) -> None:
        """Take the gradient of the values as that of the codes, and keep these in their range."""
        rows = gradient.T if self._layout is Layout.COLUMN else gradient
        self.reals.grad = self._grouped(rows.reshape(self._geometry.rows, -1)) * self._step

    def limit(self) -> None:
        """Keep the codes in the range of the type."""
        self.reals.clamp_(0, self._highest)

    def stored(self) -> Bytes:
        """Return the blocks with the best codes."""
        rows = self._rows(self.best.float()).cpu().numpy()
        return self._codec.requantize(self._stored, np.ascontiguousarray(rows))

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
    """The training of a draft.

    Args:
        draft: The draft whose blocks are replaced.
    """

    def __init__(self, draft: Draft) -> None:
        graph, names = draft.package.graph, [use.name for use in draft.package.graph.weights()]
        device = torch.get_default_device()
        ids = calibration_windows(draft.source, draft.text, draft.device, WINDOWS)
        if len(ids) < 2:
            raise UsageError(
                "the text is too short to train on a part of it and to check on another",
                expected=f"at least {2 * ids.shape[1]} tokens",
                found=ids.numel(),
            )
        # Windows of a text come in its order; what is held out is to be from all over it.
        count = min(HELD_OUT, len(ids) // 2)
        is_held_out = torch.zeros(len(ids), dtype=torch.bool)
        is_held_out[:: len(ids) // count] = True
        self._held_out, self._windows = ids[is_held_out], ids[~is_held_out]
        self._draft = draft
        self._trained = {name: _Codes(draft, name) for name in names if _is_trained(draft, name)}
        self._source = {
            name: torch.from_numpy(np.ascontiguousarray(draft.source_values(name))).to(device)
            for name in names
        }
        self._values = {
            name: torch.from_numpy(np.ascontiguousarray(draft.values(name))).to(device)
            for name in names
            if name not in self._trained
        }
        alone = any(isinstance(op, LatentAttention | Stateful) for op in graph.ops)
        size = ids.shape[1] * graph.vocab_size
        self._pass_texts = 1 if alone else max(1, LOGITS // size)

    def run(self) -> str:
        """Train, and return a note for the user."""
        if not self._trained:
            return "distill: no matrix has blocks whose codes can be trained"
        first = best = self._check()
        steps = math.ceil(STEPS / CHECKS)
        optimizer = torch.optim.Adam(
            [{"params": [codes.reals], "lr": codes.rate} for codes in self._trained.values()],
            betas=(0.9, 0.99),
            eps=1e-15,  # gradients of single codes are far below the usual 1e-8
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate)
        batches, done, misses = self._batches(), 0, 0
        while done < STEPS and misses < PATIENCE:
            for _ in range(min(steps, STEPS - done)):
                self._step(next(batches), optimizer)
                schedule.step()
                done += 1
            loss, misses = self._check(), misses + 1
            if loss < best:
                best, misses = loss, 0
                for codes in self._trained.values():
                    codes.best = codes.codes()
        if best < first:
            for name, codes in self._trained.items():
                self._draft.replace(name, codes.stored())
        return self._note(first, best, done)

    def _note(self, first: float, best: float, steps: int) -> str:
        text = "of the given text" if self._draft.text is not None else "that the model wrote"
        count = len(self._trained)
        what = f"codes of {count} matrices trained" if best < first else "nothing gained"
        return (
            f"distill: {what} in {steps} steps on {self._windows.numel():,} tokens {text}; "
            f"divergence on held-out windows {first:.3g} nats a token before, {best:.3g} after"
        )

    def _batches(self) -> Iterator[Tensor]:
        """Yield the windows of each step, all windows in a random order before any comes again."""
        generator = torch.Generator("cpu").manual_seed(0)
        size = min(WINDOWS_OF_STEP[self._draft.device], len(self._windows))
        while True:
            order = torch.randperm(len(self._windows), generator=generator, device="cpu")
            for part in order.split(size):
                if len(part) == size:
                    yield self._windows[part.to(self._windows.device)]

    def _step(self, windows: Tensor, optimizer: torch.optim.Optimizer) -> None:
        leaves = {name: codes.values().requires_grad_() for name, codes in self._trained.items()}
        for part in windows.split(self._pass_texts):
            loss = self._divergence(part, leaves, differentiable=True)
            (loss / windows.numel()).backward()
        for name, codes in self._trained.items():
            gradient = leaves.pop(name).grad
            # No token of the windows was routed to an expert that has none.
            if gradient is not None:
                codes.descend(gradient)
        optimizer.step()
        optimizer.zero_grad()
        for codes in self._trained.values():
            codes.limit()

    def _check(self) -> float:
        """Return the mean divergence on the windows that are held out."""
        values = {name: codes.values() for name, codes in self._trained.items()}
        sums = [
            float(self._divergence(part, values)) for part in self._held_out.split(self._pass_texts)
        ]
        return sum(sums) / self._held_out.numel()

    def _divergence(
        self, windows: Tensor, values: Mapping[str, Tensor], *, differentiable: bool = False
    ) -> Tensor:
        """Return the sum of the divergences of all predictions from those of the source."""
        graph, shape = self._draft.package.graph, windows.shape
        logits = TextStack(graph, self._source, *shape).logits(windows)
        source = torch.log_softmax(logits, -1)
        weights = {**self._values, **values}
        stack = TextStack(graph, weights, *shape, differentiable=differentiable)
        with torch.set_grad_enabled(differentiable):
            return torch.nn.functional.kl_div(
                torch.log_softmax(stack.logits(windows), -1),
                source,
                reduction="sum",
                log_target=True,
            )


def _rate(step: int) -> float:
    """Return the factor on the rate of a step: a short rise, then half a cosine to zero."""
    return min(1.0, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / STEPS)) / 2


def _is_trained(draft: Draft, name: str) -> bool:
    dtype = draft.package.tensor(name).parsed_dtype()
    return dtype.is_block and CODECS[dtype.name].levels > 0
