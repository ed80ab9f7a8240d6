"""A batch on the CPU: sequences with a cache each, which share the weights.

They run one after the other in a pass. So a batch is as fast as its sequences alone, but texts join
and leave between its steps as they do on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from rdrr_runtime.backend import Backend, ResumingBackend, Row, StoringBackend
from rdrr_runtime.images.rows import SeenImages, SequencePositions
from rdrr_runtime.sampling.params import SamplingParams
from rdrr_runtime.sampling.sampler import Sampler


class _Sequence(Backend, ResumingBackend, StoringBackend, Protocol):
    """A backend with all that a sequence of a batch needs."""

    images: SeenImages | None
    positions: SequencePositions | None

    def fill(self, ids: Sequence[int], base: int) -> None: ...


class CpuBatch:
    """Several sequences, see `BatchBackend`.

    Args:
        backends: A backend for each sequence.
    """

    def __init__(self, backends: Sequence[_Sequence]) -> None:
        self._backends = backends
        self._samplers: dict[int, tuple[Sampler, list[int]]] = {}
        self.sequences = len(backends)
        self.context = backends[0].info.context

    @property
    def kv_bytes(self) -> int:
        """Bytes of the caches."""
        return sum(backend.info.kv_bytes for backend in self._backends)

    def build_ahead(self) -> None:
        """Do nothing: nothing is compiled."""

    def resumable(self, sequence: int, base: int) -> int:
        """Return the last slot up to `base` at which a sequence can go on."""
        return self._backends[sequence].resumable(base)

    def border(self, ids: Sequence[int], begin: int, end: int) -> int:
        """Return where a part of a prompt ends, see `BatchBackend.border`."""
        images = self._backends[0].images
        return end if images is None else images.border(ids, begin, end)

    def copy(self, source: int, target: int, slots: int) -> None:
        """Copy the first slots of a sequence to another one, see `BatchBackend.copy`."""
        parts = self._backends[source].read_cache(slots)
        self._backends[target].write_cache(parts, slots)
        before, after = self._backends[source].positions, self._backends[target].positions
        if before is not None and after is not None:
            after.copy_from(before, slots)

    def fill(self, rows: Sequence[Row]) -> None:
        """Run rows only to store their keys and values; a sequence's rows are in slot order."""
        for sequence, group in groupby(rows, lambda row: row.sequence):
            part = list(group)
            self._backends[sequence].fill([row.token for row in part], part[0].slot)

    def greedy(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run one row of each sequence, feeding back the most probable tokens."""
        return [self._backends[row.sequence].greedy([row.token], row.slot, count) for row in rows]

    def feed_rows(self, rows: Sequence[Row], *, sampled: bool) -> None:
        """Return None: each id is known before the next pass."""
        del rows, sampled

    def begin(self, sequence: int, options: SamplingParams, seen: Sequence[int]) -> None:
        """Start a generation in a sequence, see `BatchBackend.begin`."""
        self._samplers[sequence] = Sampler(options), [*seen]

    def sample(self, rows: Sequence[Row], count: int) -> list[list[int]]:
        """Run rows like `greedy`, feeding back sampled tokens."""
        return [self._sample(row, count) for row in rows]

    def _sample(self, row: Row, count: int) -> list[int]:
        backend, (sampler, seen) = self._backends[row.sequence], self._samplers[row.sequence]
        ids = [row.token]
        for slot in range(row.slot, row.slot + count):
            ids.append(sampler.choose(backend.logits(ids[-1:], slot)[0], seen))
            seen.append(ids[-1])
        return ids[1:]
