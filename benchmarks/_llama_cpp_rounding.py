"""The torch reference with the roundings of llama.cpp's CPU backend.

llama.cpp rounds the activations that enter a product to the type that its dot product with the
weights takes: blocks of int8 for quantized weights, f16 for weights in f16. It takes the gelu from
a table in f16. With these roundings the reference should give the same logits up to float32, until
a difference of one unit in the last place makes a rounding go the other way; so compare the first
token, whose attention has one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from _clear_routes import reference_memory
from rdrr_manifests.graph.ops import Experts, GatedActivation, Head, Linear, Op, WeightUse
from rdrr_runtime.reference.activations import gelu_tanh
from rdrr_runtime.reference.ops import compute
from rdrr_runtime.reference.run import Observer, ReferencePass
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rdrr_manifests.package import Package

F32 = npt.NDArray[np.float32]
Rounding = Callable[[Tensor], Tensor]


def round_to_q8_0(x: Tensor) -> Tensor:
    """Round each 32 values of a row to int8 with one scale in f16, as ggml's Q8_0 does."""
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    # ggml computes the codes with the scale before it is rounded to f16.
    units: Tensor = torch.round(blocks * _reciprocal(scale))
    rounded: Tensor = (units * scale.half().float()).flatten(-2)
    return rounded


def round_to_q8_k(x: Tensor) -> Tensor:
    """Round each 256 values of a row to int8 with one scale in f32, as ggml's Q8_K does.

    The value of largest magnitude becomes -127, whatever its sign.
    """
    blocks = x.unflatten(-1, (-1, 256))
    at = blocks.abs().argmax(-1, keepdim=True)
    inverse = -127 * _reciprocal(blocks.gather(-1, at))
    units = torch.round(blocks * inverse).clamp(max=127)
    return (units * _reciprocal(inverse)).flatten(-2)


def round_to_f16(x: Tensor) -> Tensor:
    """Round values to f16."""
    return x.half().float()


def gelu_of_table(x: Tensor) -> Tensor:
    """Return the gelu of values in f16, rounded to f16; outside of -10 to 10 it is 0 or x."""
    y = round_to_f16(gelu_tanh(round_to_f16(x)))
    return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))


def _reciprocal(x: Tensor) -> Tensor:
    return torch.where(x != 0, 1 / x, torch.zeros_like(x))


ROUNDINGS: Mapping[str, Rounding] = MappingProxyType(
    {
        **dict.fromkeys(("Q8_0", "Q4_0", "Q5_0", "MXFP4"), round_to_q8_0),
        **dict.fromkeys(("Q4_K", "Q5_K", "Q6_K"), round_to_q8_k),
        "F16": round_to_f16,
    }
)
"""How activations are rounded, by the type of the weights; not at all for other types."""


class RoundedModel:
    """A package in the torch reference, rounding as llama.cpp does.

    Args:
        package: The package, best made from the GGUF file that llama.cpp runs.
        rounds: Whether to round; without, this is the usual reference.
    """

    def __init__(self, package: Package, *, rounds: bool = True) -> None:
        self._graph = package.graph
        self._rounds = rounds
        self._dtypes = {
            name: tensor.parsed_dtype().name for name, tensor in package.manifest.tensors.items()
        }
        self._weights = {
            use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name)))
            for use in package.graph.weights()
        }

    def logits(self, ids: Sequence[int]) -> F32:
        """Return the logits after each id, float32 [ids, vocab]."""
        graph, rows = self._graph, torch.arange(len(ids))
        memory = reference_memory(graph, self._weights, len(ids))
        memory = replace(memory, observe=self._observer())
        run = ReferencePass(memory, torch.tensor(list(ids)), 0, rows, all_rows=True)
        with torch.no_grad():
            for op in graph.ops:
                run.values[op.out] = self._compute(run, op) if self._rounds else compute(run, op)
        logits: F32 = run.values[graph.ops[-1].out].numpy()
        return logits

    def _compute(self, run: ReferencePass, op: Op) -> Tensor:
        if isinstance(op, (Linear, Head)):
            with _replaced(run, op.x, self._rounding(op.weight)):
                return compute(run, op)
        if isinstance(op, Experts):
            with _replaced(run, op.x, self._rounding(op.gates[0])):
                return compute(run, op)
        if isinstance(op, GatedActivation) and op.activation == "gelu_tanh" and op.up is not None:
            up: Tensor = run.values[op.up].unflatten(-1, (op.up_parts, op.width))[:, op.up_part]
            gate: Tensor = run.values[op.gate] * op.gate_scale
            return gelu_of_table(gate) * up
        return compute(run, op)

    def _observer(self) -> Observer | None:
        """Return a function that rounds the rows that enter the down projection of an expert.

        They exist only within the op, where the observer may still change them.
        """
        if not self._rounds:
            return None
        downs = {use.name for op in self._graph.ops if isinstance(op, Experts) for use in op.downs}

        def observe(use: WeightUse, rows: Tensor) -> None:
            if use.name in downs:
                rows.copy_(self._rounding(use)(rows))

        return observe

    def _rounding(self, use: WeightUse) -> Rounding:
        return ROUNDINGS.get(self._dtypes[use.name], lambda x: x)


@contextmanager
def _replaced(run: ReferencePass, name: str, rounding: Rounding) -> Iterator[None]:
    """Round a value while the block computes one op; others read it as it is."""
    value: Any = run.values[name]
    run.values[name] = rounding(value)
    try:
        yield
    finally:
        run.values[name] = value
