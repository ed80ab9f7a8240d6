"""The CPU backend: the torch reference in float32, behind the interface that the engine uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt
import torch
from rdrr_format.errors import FormatError
from rdrr_manifests.package import Package

from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.images.rows import PassImages, SequencePositions, seen_images
from rdrr_runtime.packing import EncodedText, Segments, mean_of, packs
from rdrr_runtime.phases.cache.state_cache import state_name
from rdrr_runtime.phases.cache.state_positions import StatePosition
from rdrr_runtime.reference.batch import CpuBatch
from rdrr_runtime.reference.draft_head import PREFILL_ROWS, CpuDraftHead, most_probable
from rdrr_runtime.reference.forward import ReferenceModel
from rdrr_runtime.reference.run import Observer
from rdrr_runtime.reference.sensitivity import WindowSensitivity, sensitivity
from rdrr_runtime.sampling.masks import entropies

F32 = npt.NDArray[np.float32]

PACKED_ROWS = 512
"""Token rows of a pass over packed texts, unless a single text has more."""


class TensorCopies:
    """Recurrent states with copies of them, see `StateCopies`.

    Args:
        states: The states.
    """

    def __init__(self, states: Sequence[torch.Tensor]) -> None:
        self._states = states
        self.kept: dict[int, list[torch.Tensor]] = {}

    def save(self, index: int) -> None:
        """Copy the states into the copy `index`."""
        self.kept[index] = [state.clone() for state in self._states]

    def restore(self, index: int) -> None:
        """Copy the copy `index` into the states."""
        for state, kept in zip(self._states, self.kept[index], strict=True):
            state.copy_(kept)


class CpuBackend:
    """A model in torch with its weights dequantized to float32.

    Args:
        package: The package to load.
        context: Slots of the key-value cache, in tokens.
        observe: Called with each weight of a linear layer or expert and the rows it multiplies.
        device: Device of torch that computes `logits`, `hidden`, `means` and `sensitivity`; the
            other methods are for the CPU.
    """

    def __init__(
        self,
        package: Package,
        *,
        context: int,
        observe: Observer | None = None,
        device: str = "cpu",
    ) -> None:
        graph = package.graph

        def tensor(name: str) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(package.dequantize(name))).to(device)

        weights = {use.name: tensor(use.name) for use in graph.weights()}
        self._graph, self._weights = graph, weights
        self._is_causal = graph.is_causal
        self._batch: CpuBatch | None = None
        self.images = seen_images(package)
        self._allocate(context, observe)

    def _allocate(self, context: int, observe: Observer | None = None) -> None:
        """Allocate what belongs to a sequence."""
        graph, weights = self._graph, self._weights
        self._head: CpuDraftHead | None = None
        self._context = context
        self._model = ReferenceModel(graph, weights, context, observe)
        self._copies = TensorCopies(self._model.states) if graph.states else None
        self._position = StatePosition(self._copies)
        self.positions = None if self.images is None else SequencePositions(self.images)
        size = sum(4 * weight.numel() for weight in weights.values())
        self._info = BackendInfo(
            "cpu", None, context, size, graph.kv_bytes(context, 4) + graph.state_bytes()
        )

    @property
    def info(self) -> BackendInfo:
        """The backend's name, context and memory."""
        return self._info

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> F32:
        """Run `ids` and return the logits of the last one, or of each with `all_rows`.

        Args:
            ids: Token ids; row r is stored in slot base + r.
            base: Valid slots before this pass.
            all_rows: Return the logits of every row.

        Returns:
            float32 [1, vocab], or [len(ids), vocab] with `all_rows`.
        """
        self._position.begin(base)
        parts, at = [], base
        for part in self._divided(ids):
            images = self._images_of(part, at)
            logits = self._model.forward(part, at, all_rows=all_rows, images=images)
            parts.append(logits.cpu().numpy())
            at += len(part)
        self._position.advance(len(ids))
        if len(ids) > 1:
            self._position.keep()
        return np.concatenate(parts) if all_rows else parts[-1]

    def hidden(self, texts: Sequence[EncodedText]) -> Iterator[F32]:
        """Yield the hidden states of texts that the head would read, see `Backend.hidden`."""
        if not self._is_causal:
            for packed in packs(texts, PACKED_ROWS):
                segments = Segments.of(packed)
                ids = [token for text in packed for token in text.ids]
                yield from segments.split(self._model.hidden_of_texts(ids, segments).cpu().numpy())
            return
        for text in texts:
            self._position.begin(0)
            starts = range(0, len(text), PREFILL_ROWS)
            parts = [self._model.hidden(text.ids[at : at + PREFILL_ROWS], at) for at in starts]
            self._position.advance(len(text))
            yield torch.cat(parts).cpu().numpy()

    def means(self, texts: Sequence[EncodedText], part: slice) -> Iterator[F32]:
        """Yield the mean of a part of the hidden states of each text, see `Backend.means`."""
        return (mean_of(states[part]) for states in self.hidden(texts))

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        """Run `ids`, feed back the most probable token each time, and return `count` new ids.

        Raises:
            GenerationError: The logits are not finite.
        """
        return most_probable(self.logits, ids, base, count)

    def sensitivity(self, window: Sequence[int], seed: int) -> WindowSensitivity:
        """Measure how much errors of the weights matter over a window of tokens."""
        return sensitivity(self._graph, self._weights, window, seed)

    def fill(self, ids: Sequence[int], base: int) -> None:
        """Run `ids` only to store their keys and values."""
        self.logits(ids, base)

    def window_logits(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> F32:
        """Return the logits of the last `last_n` of `ids`, see `Backend.window_logits`."""
        self._position.begin(base)
        uncertain = max(last_n - 1, 0)
        rows = self._model.forward(
            ids,
            base,
            positions=positions,
            all_rows=True,
            uncertain=uncertain,
            images=self._images_of(ids, base) if positions is None else None,
        )
        self._position.advance(len(ids) - uncertain)
        return rows[len(ids) - last_n :].numpy()

    def _divided(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield ids in parts that run one after the other."""
        if self.images is not None:
            return self.images.parts(ids, PREFILL_ROWS)
        return (ids[at : at + PREFILL_ROWS] for at in range(0, len(ids), PREFILL_ROWS))

    def _images_of(self, ids: Sequence[int], base: int) -> PassImages | None:
        return None if self.positions is None else self.positions.of_pass(ids, base)

    def window_picks(
        self,
        ids: Sequence[int],
        base: int,
        *,
        last_n: int,
        positions: Sequence[int] | None = None,
    ) -> tuple[list[int], F32]:
        """Return the argmax of each of these rows, ties to the lower id, and the row's entropy."""
        rows = self.window_logits(ids, base, last_n=last_n, positions=positions)
        return [int(token) for token in rows.argmax(axis=1)], entropies(rows)

    def read_cache(self, slots: int) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the first `slots` slots of the cache, see `StoringBackend.read_cache`."""
        states = self._model.states
        index = self._position.index(slots)
        if index is not None and self._copies is not None:
            states = self._copies.kept[index]
        parts = {name: layer[:, :slots] for name, layer in self._caches().items()}
        parts |= {state_name(at): state for at, state in enumerate(states)}
        return {
            name: np.ascontiguousarray(part.numpy()).view(np.uint8) for name, part in parts.items()
        }

    def resumable(self, base: int) -> int:
        """Return the last position up to `base` at which a pass may begin."""
        return self._position.resumable(base)

    def write_cache(self, cache: Mapping[str, npt.NDArray[np.uint8]], slots: int) -> None:
        """Restore the slots that `read_cache` returned.

        Raises:
            FormatError: The names or shapes are those of another model.
        """
        targets = {name: layer[:, :slots] for name, layer in self._caches().items()}
        targets |= {state_name(at): state for at, state in enumerate(self._model.states)}
        shapes = {name: (*part.shape[:-1], 4 * part.shape[-1]) for name, part in targets.items()}
        if shapes != {name: part.shape for name, part in cache.items()}:
            raise FormatError(
                "the saved cache belongs to another model", expected=f"{len(shapes)} parts"
            )
        for name, part in targets.items():
            part.copy_(torch.from_numpy(np.array(cache[name]).view(np.float32)))
        if self.positions is not None:
            self.positions.rewind(0)
        self._position.replace(slots)

    def _caches(self) -> dict[str, torch.Tensor]:
        names = ("keys", "values")
        return {
            f"{name}.{index}": layer[which]
            for index, layer in self._model.cache.items()
            for which, name in enumerate(names)
        }

    def batch(self, sequences: int, context: int) -> CpuBatch:
        """Return a batch with at least these sequences and slots; it is kept for the next call."""
        held = self._batch
        if held is None or held.sequences < sequences or held.context < context:
            held = self._batch = CpuBatch([self._another(context) for _ in range(sequences)])
        return held

    def _another(self, context: int) -> CpuBackend:
        """Return a sequence with the same weights."""
        other = copy(self)
        other._allocate(context)
        return other

    def draft_head(self, package: Package) -> CpuDraftHead:
        """Load the draft head once, see `DraftingBackend.draft_head`."""
        if self._head is None:
            graph = package.mtp_graph
            assert graph is not None, "a draft head is only loaded from a package that has one"
            self._head = CpuDraftHead(package, graph, self._weights, self._context)
        return self._head

    def keep_hidden(self, *, keeps: bool) -> None:
        """Set whether passes keep their hidden states, see `DraftingBackend.keep_hidden`."""
        kept = None if self._head is None or not keeps else self._head.hidden
        self._model.kept = kept

    def close(self) -> None:
        """Do nothing: Python frees the memory of this backend."""
