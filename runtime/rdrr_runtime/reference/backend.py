"""The CPU backend: the torch reference in float32 behind the engine's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from rdrr_format.errors import FormatError, GenerationError
from rdrr_manifests.package import Package

from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.reference import ops
from rdrr_runtime.reference.forward import ReferenceModel
from rdrr_runtime.reference.run import Observer
from rdrr_runtime.sampling.entropy import entropies

F32 = npt.NDArray[np.float32]

PREFILL_ROWS = 256
"""Prompt tokens of a pass: bounds the memory of the scores, as it does on the GPU."""


class CpuBackend:
    """A model in torch, its weights dequantized to float32.

    Args:
        package: What to load.
        context: KV slots.
        observe: Receives the inputs of weights.
    """

    def __init__(self, package: Package, *, context: int, observe: Observer | None = None) -> None:
        graph = package.graph
        weights = {
            use.name: torch.from_numpy(np.ascontiguousarray(package.dequantize(use.name)))
            for use in graph.weights()
        }
        self._model = ReferenceModel(graph, weights, context, observe)
        size = sum(4 * weight.numel() for weight in weights.values())
        self._info = BackendInfo("cpu", None, context, size, graph.kv_bytes(context, 4))

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend."""
        return self._info

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Logits after the last of `ids`, float32 [1, vocab]; of every row with `all_rows`."""
        parts = [
            self._model.forward(
                ids[start : start + PREFILL_ROWS], base + start, all_rows=all_rows
            ).numpy()
            for start in range(0, len(ids), PREFILL_ROWS)
        ]
        return np.concatenate(parts) if all_rows else parts[-1]

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, then feed back the most probable token; `count` new ids.

        Raises:
            GenerationError: The logits are no numbers.
        """
        out: list[int] = []
        for _ in range(count):
            logits = self.logits(ids, base)
            if np.isnan(logits[0]).any():
                raise GenerationError(
                    "the model computes no numbers",
                    hint="validate the package with `deep` to check its weights",
                )
            base += len(ids)
            out.append(ops.argmax(torch.from_numpy(logits[0])))
            ids = out[-1:]
        return out

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` for their keys and values alone."""
        self.logits(ids, base)

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Logits of the last `wanted` of `ids`, see `Backend.window_logits`."""
        rows = self._model.forward(ids, base, positions=positions, all_rows=True)
        return rows[len(ids) - wanted :].numpy()

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        wanted: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """The most probable id of each of these rows, ties to the lower one, and its entropy."""
        rows = self.window_logits(ids, base, wanted=wanted, positions=positions)
        return [int(one) for one in rows.argmax(axis=1)], entropies(rows)

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """The first slots of the cache, see `StoringBackend.read_cache`."""
        return {
            name: np.ascontiguousarray(layer[:, :slots].numpy()).view(np.uint8)
            for name, layer in self._caches().items()
        }

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Put back what `read_cache` gave.

        Raises:
            FormatError: Names or shapes of another model.
        """
        targets = {name: layer[:, :slots] for name, layer in self._caches().items()}
        shapes = {name: (*one.shape[:2], 4 * one.shape[2]) for name, one in targets.items()}
        if shapes != {name: part.shape for name, part in cache.items()}:
            raise FormatError("a saved cache of another model", expected=f"{len(shapes)} parts")
        for name, target in targets.items():
            target.copy_(torch.from_numpy(cache[name].view(np.float32)))

    def _caches(self) -> dict[str, torch.Tensor]:
        names = ("keys", "values")
        return {
            f"{name}.{index}": layer[which]
            for index, layer in enumerate(self._model.cache)
            for which, name in enumerate(names)
        }

    def close(self) -> None:
        """Nothing to free beyond what Python frees."""
