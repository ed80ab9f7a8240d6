"""The engine and its strategies over a backend whose next token is known in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.decode.stats import GenerationStats
from rdrr_runtime.engine import Engine
from rdrr_runtime.sampling.params import SamplingParams

VOCAB, EOS = 64, 63


class Counting:
    """A backend that predicts t + 1 after token t, or what `script` has for the cache length."""

    def __init__(self, context: int = 100, script: dict[int, int] | None = None) -> None:
        self.info = BackendInfo("fake", None, context, 0, 0)
        self.script = script or {}
        self.cache: list[int] = []

    def _next(self, ids: Sequence[int], base: int) -> int:
        assert base <= len(self.cache), "a pass may not leave a gap in the cache"
        assert base + len(ids) <= self.info.context
        self.cache[base:] = ids
        return self.script.get(len(self.cache), (self.cache[-1] + 1) % EOS)

    def logits(self, ids: Sequence[int], base: int, *, all_rows: bool = False) -> np.ndarray:
        assert not all_rows
        out = np.zeros((1, VOCAB), np.float32)
        out[0, self._next(ids, base)] = 50.0
        return out

    def greedy(self, ids: Sequence[int], base: int, count: int) -> list[int]:
        out = [self._next(ids, base)]
        while len(out) < count:
            out.append(self._next([out[-1]], len(self.cache)))
        return out

    def close(self) -> None:
        self.cache.clear()


def run(backend: Counting, prompt: list[int], **options) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    chunks = Engine(backend, [EOS], VOCAB).generate(prompt, stats=stats, **options)
    return [token_id for chunk in chunks for token_id in chunk], stats


@pytest.mark.parametrize("interval", [1, 2, 4, 8])
@pytest.mark.parametrize("ends_at", range(1, 12))
def test_the_interval_never_changes_the_ids_wherever_the_sequence_ends(
    interval: int, ends_at: int
) -> None:
    script = {3 + ends_at - 1: EOS}
    ids, stats = run(Counting(script=script), [5, 6, 7], max_tokens=20, interval=interval)
    assert ids == [*range(8, 8 + ends_at - 1), EOS]
    assert stats.finish == "stop"
    assert stats.counts.wasted <= interval - 1
    assert stats.counts.forwards == ends_at - 1 + stats.counts.wasted


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_nothing_is_wasted_at_max_tokens(max_tokens: int) -> None:
    ids, stats = run(Counting(), [1], max_tokens=max_tokens, interval=4)
    assert ids == list(range(2, 2 + max_tokens))
    assert (stats.finish, stats.counts.wasted) == ("length", 0)
    assert stats.counts.forwards == max_tokens - 1
    assert stats.counts.readbacks == 1 + -(-(max_tokens - 1) // 4)


def test_a_generation_stops_when_the_context_is_full() -> None:
    ids, stats = run(Counting(context=6), [1, 2, 3], max_tokens=50)
    assert ids == [4, 5, 6, 7]  # three fill the free slots, and the last one needs no slot
    assert stats.finish == "context"


def test_sampling_yields_the_same_ids_when_one_token_has_all_the_probability() -> None:
    greedy, _ = run(Counting(), [1, 2], max_tokens=9)
    sampled, stats = run(
        Counting(), [1, 2], max_tokens=9, sampling=SamplingParams(temperature=1.0, seed=3)
    )
    assert sampled == greedy
    assert stats.counts.forwards == 8


def test_a_prompt_longer_than_the_context_is_refused_and_one_that_fits_is_not() -> None:
    with pytest.raises(GenerationError, match=r"longer than the context.*at most 4 tokens.*5"):
        run(Counting(context=4), [1] * 5, max_tokens=1)
    assert run(Counting(context=4), [1] * 4, max_tokens=5)[0] == [2]


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1]], ids=["empty", "too high", "negative"])
def test_an_empty_or_out_of_vocabulary_prompt_is_refused(prompt: list[int]) -> None:
    with pytest.raises(GenerationError):
        run(Counting(), prompt, max_tokens=1)


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"max_tokens": 1, "interval": 0}], ids=str)
def test_counts_below_one_are_wrong_usage(wrong: dict) -> None:
    with pytest.raises(UsageError):
        run(Counting(), [1], **wrong)
