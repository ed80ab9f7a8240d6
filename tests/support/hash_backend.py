"""A backend that computes nothing but a hash, so that one wrong slot changes the sequence."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.engine import Engine

VOCAB = 60
F32 = npt.NDArray[np.float32]


def logits_after(ids: Sequence[int]) -> F32:
    """Return logits that are different after any other ids."""
    scores = [zlib.crc32(bytes([*ids, id_])) % 1000 for id_ in range(VOCAB)]
    return np.array(scores, np.float32) / 100


class Hashing:
    """A backend whose logits follow from a hash of all ids in its cache.

    Args:
        context: Slots of the cache.
        logits_of: The logits after some ids.
    """

    def __init__(
        self, context: int = 300, logits_of: Callable[[Sequence[int]], F32] = logits_after
    ) -> None:
        self.info, self._logits_of = BackendInfo("fake", None, context, 0, 0), logits_of
        self.cache: list[int] = []
        self.ran = 0

    def window_logits(self, ids: Sequence[int], base: int, *, last_n: int) -> F32:
        assert base <= len(self.cache), "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context, "a pass beyond the context"
        self.cache[base:] = ids
        self.ran += len(ids)
        ends = range(base + len(ids) - last_n + 1, base + len(ids) + 1)
        return np.array([self._logits_of(self.cache[:end]) for end in ends])

    def window_picks(self, ids, base, *, last_n):
        rows = self.window_logits(ids, base, last_n=last_n)
        return rows.argmax(axis=1).tolist(), np.zeros(last_n, np.float32)

    def logits(self, ids: Sequence[int], base: int) -> F32:
        return self.window_logits(ids, base, last_n=1)

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        out: list[int] = []
        for _ in range(count):
            out.append(int(self.logits(ids, base).argmax()))
            base, ids = base + len(ids), out[-1:]
        return out


def forget(engine: Engine) -> None:
    """Make an engine forget its cached ids."""
    with engine.lend():
        pass


def generate(engine: Engine, ids: Sequence[int], **options) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    runs = engine.generate(ids, stats=stats, **options)
    return [id_ for run in runs for id_ in run], stats
