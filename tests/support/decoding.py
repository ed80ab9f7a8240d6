"""Decoding a small model with random weights: prompts, runs, and a sequence that ends early."""

from __future__ import annotations

import numpy as np
from rdrr_runtime.backend import Backend
from rdrr_runtime.compile.pass_spec import DECODE
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.chooser import Chooser
from rdrr_runtime.decode.rules import TokenRules
from rdrr_runtime.gpu import GpuBackend
from support.packages import VOCAB


def prompt(rng, size: int) -> list[int]:
    return rng.integers(0, VOCAB, size).tolist()


def decode_dispatches(backend: GpuBackend) -> list:
    return list(backend._prepared.get(DECODE).to_token)


def generated(
    backend: Backend, strategy, ids: list[int], max_tokens: int, stops: frozenset[int]
) -> tuple[list[int], Counts]:
    counts = Counts()
    chooser = Chooser(backend, TokenRules(stop_ids=stops), ids)
    runs = strategy.run(Job(ids, 0, max_tokens), chooser, counts)
    return [id_ for run in runs for id_ in run], counts


class Ending:
    """A backend that returns `EOS` as the next id at one slot, whatever the model computes."""

    EOS = 0

    def __init__(self, backend: GpuBackend, slot: int) -> None:
        self.info = backend.info
        self._backend = backend
        self._slot = slot

    def logits(self, ids, base, *, all_rows=False):
        logits = self._backend.logits(ids, base, all_rows=all_rows)
        if base + len(ids) == self._slot:
            logits[0, self.EOS] = np.inf
        return logits

    def greedy(self, ids, base, count):
        new_ids = self._backend.greedy(ids, base, count)
        start = base + len(ids)
        return [self.EOS if start + i == self._slot else id_ for i, id_ in enumerate(new_ids)]

    def close(self) -> None:
        """Leave the wrapped backend open; its owner closes it."""


def endless_prompt(backend: GpuBackend, rng, size: int) -> list[int]:
    """Return a random prompt whose greedy continuation does not contain `EOS`."""
    for _ in range(100):
        ids = prompt(rng, size)
        if Ending.EOS not in backend.greedy(ids, 0, 20):
            return ids
    raise AssertionError("every text ends")


def varied_prompt(backend: GpuBackend, rng) -> list[int]:
    """Return, of several random prompts, the one with the most distinct ids in its continuation."""
    prompts = [endless_prompt(backend, rng, 6) for _ in range(6)]
    return max(prompts, key=lambda ids: len(set(backend.greedy(ids, 0, 10))))
