"""The method `gptq` of `quality`: errors of a matrix compensate each other over its inputs.

The model runs op by op over all windows of a text, once as its source has it and once with the
blocks that are chosen so far, so each matrix also makes up for what those before it have lost. Only
the weights and the activations of one op are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from rdrr_converter.encode.compensate import compensate, damped, inverse_factor, is_compensable
from rdrr_format.encoding import decode_tensor
from rdrr_format.layouts import Layout
from rdrr_manifests.graph import WeightUse
from rdrr_manifests.graph.ops import Experts, Head, Linear, uses
from rdrr_runtime.reference.run import ReferencePass
from rdrr_runtime.reference.stack import TextStack
from torch import Tensor

from rdrr._calibration import calibration_windows
from rdrr._refining import F32, Bytes, Draft

HELD_OUT = 4
"""One row of this many is held out, to see whether the compensation helps beyond the others."""

MOMENTS = 1 << 30
"""Bytes of the moments of experts that are gathered at once."""


def gptq(draft: Draft) -> str:
    """Compensate the errors of all matrices that are quantized to blocks."""
    return _Compensation(draft).run()


@dataclass(frozen=True)
class _Products:
    """Means over some rows of a weight's inputs x, which were s in the source.

    Attributes:
        inputs: x x', [K, K].
        drift: (s - x) x', [K, K]; None where x and s are the same.
    """

    inputs: Tensor
    drift: Tensor | None

    @classmethod
    def of(cls, rows: Tensor, source: Tensor | None) -> _Products:
        drift = None if source is None else (source - rows).T @ rows / len(rows)
        return cls(rows.T @ rows / len(rows), drift)

    def losses(self, weight: Tensor, values: Tensor) -> Tensor:
        """Return the mean square of the error of each output, but for a constant, [N]."""
        error = weight - values
        losses = (error @ self.inputs * error).sum(1)
        if self.drift is not None:
            losses += 2 * (error * (weight @ self.drift)).sum(1)
        return losses


class _Moments:
    """What is known of the inputs of a weight.

    Args:
        rows: The inputs, float32 [n, K], in the order of the texts.
        source: The inputs in the source, float32 [n, K]; None if they are unknown.
    """

    def __init__(self, rows: Tensor, source: Tensor | None) -> None:
        count = len(rows) - max(1, len(rows) // HELD_OUT)
        parts = (slice(count), slice(count, None))
        self._fitted, self.held_out = (
            _Products.of(rows[part], None if source is None else source[part]) for part in parts
        )

    @property
    def is_finite(self) -> bool:
        """Whether they say anything: a model may overflow in float32."""
        return bool(self._fitted.inputs.isfinite().all() and self.held_out.inputs.isfinite().all())

    @cached_property
    def factor(self) -> Tensor:
        """The factor of the inverse of the moments, see `inverse_factor`."""
        return inverse_factor(self._fitted.inputs.double())

    @cached_property
    def _shift(self) -> Tensor | None:
        """What to add to a weight, as a factor, so that its outputs are again those of s."""
        if self._fitted.drift is None:
            return None
        inputs = damped(self._fitted.inputs.double())
        shift: Tensor = torch.linalg.solve(inputs, self._fitted.drift.double().T)
        return shift.T.float()

    def target(self, weight: Tensor) -> Tensor:
        """Return the weight whose outputs for x are nearest to those of `weight` for s."""
        return weight if self._shift is None else weight + weight @ self._shift


class _Values(Mapping[str, Tensor]):
    """Tensors that are read when they are needed, of which a few are kept."""

    def __init__(self, read: Callable[[str], F32], names: Iterable[str], device: str) -> None:
        self._names = tuple(names)
        self._read = lru_cache(4)(
            lambda name: torch.from_numpy(np.ascontiguousarray(read(name))).to(device)
        )

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Compensation:
    """The walk through a model, matrix by matrix.

    Args:
        draft: The draft whose blocks are replaced.
    """

    def __init__(self, draft: Draft) -> None:
        graph = draft.package.graph
        names = [use.name for use in graph.weights()]
        self._draft = draft
        self._ids = calibration_windows(draft.source, draft.text, draft.device)
        self._weights = _Values(draft.source_values, names, draft.device)
        # A weight that two ops read has no single kind of input.
        self._readers = Counter(use.name for op in graph.ops for use in uses(op))
        self._last: tuple[str, _Moments | None] = ("", None)
        self._changed = self._tried = 0
        shape = self._ids.shape
        stored = _Values(draft.values, names, draft.device)
        self._source, self._stored = (
            TextStack(graph, weights, *shape, device=draft.device)
            for weights in (self._weights, stored)
        )

    def run(self) -> str:
        """Compensate, and return a note for the user."""
        walks = zip(self._stored.walk(self._ids), self._source.walk(self._ids), strict=True)
        for (op, run), (_, source) in walks:
            if isinstance(op, Linear | Head) and self._takes(op.weight):
                self._improve(op.weight, self._moments(op.x, run, source))
            elif isinstance(op, Experts):
                self._improve_experts(op, run)
        text = "of the given text" if self._draft.text is not None else "that the model wrote"
        return (
            f"gptq: errors compensated in {self._changed} of {self._tried} matrices, where that "
            f"lowers the error on held-out windows, with {self._ids.numel():,} tokens {text}"
        )

    def _takes(self, use: WeightUse) -> bool:
        tensor = self._draft.package.tensor(use.name)
        is_read_once = self._readers[use.name] == 1
        return is_read_once and is_compensable(tensor.parsed_dtype(), tensor.parsed_layout())

    def _moments(self, value: str, run: ReferencePass, source: ReferencePass) -> _Moments:
        """Return the moments of a value, which several weights may read one after the other."""
        name, moments = self._last
        if moments is None or name != value:
            moments = _Moments(run.values[value], source.values[value])
            self._last = (value, moments)
        return moments

    def _improve_experts(self, op: Experts, run: ReferencePass) -> None:
        """Improve the projections of experts: those that read x, then those behind them."""
        for stacks in ((op.gates, op.ups), (op.downs,)):
            for group in _groups([use for stack in stacks for use in stack if self._takes(use)]):
                gathered: dict[str, _Moments] = {}

                def gather(
                    use: WeightUse,
                    rows: Tensor,
                    group: Mapping[str, WeightUse] = group,
                    gathered: dict[str, _Moments] = gathered,
                ) -> None:
                    if use.name in group and len(rows) > 1:
                        gathered[use.name] = _Moments(rows, None)

                self._stored.observe(run, op, gather)
                for name, moments in gathered.items():
                    self._improve(group[name], moments)

    def _improve(self, use: WeightUse, moments: _Moments) -> None:
        """Encode a matrix anew, and keep what has less error on rows that are held out."""
        if not moments.is_finite:
            return
        tensor, weight = self._draft.package.tensor(use.name), self._weights[use.name]
        dtype, layout = tensor.parsed_dtype(), tensor.parsed_layout()
        target, search = moments.target(weight), self._draft.search
        stored = compensate(target, moments.factor, dtype, layout, search)
        after = decode_tensor(stored.reshape(-1), dtype, tensor.shape, layout)
        losses = [
            moments.held_out.losses(weight, torch.from_numpy(values).to(weight.device)).cpu()
            for values in (self._draft.values(use.name), after)
        ]
        before = self._draft.stored(use.name).reshape(stored.shape)
        chosen = _better(layout, before, stored, *losses)
        self._tried += 1
        if not np.array_equal(chosen, before):
            self._changed += 1
            self._draft.replace(use.name, chosen)


def _better(layout: Layout, before: Bytes, after: Bytes, old: Tensor, new: Tensor) -> Bytes:
    """Return the stored rows with less loss; those of the column layout are chosen together."""
    if layout is Layout.COLUMN:
        return after if new.sum() < old.sum() else before
    chosen: Bytes = np.where((new < old).numpy()[:, None], after, before)
    return chosen


def _groups(weights: Iterable[WeightUse]) -> Iterator[dict[str, WeightUse]]:
    """Yield weights by name in groups whose moments fit into memory together."""
    group: dict[str, WeightUse] = {}
    size = 0
    for use in weights:
        group[use.name] = use
        size += 8 * use.shape[1] ** 2
        if size >= MOMENTS:
            yield group
            group, size = {}, 0
    if group:
        yield group
