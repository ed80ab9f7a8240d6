"""Tests of the phase that fills masks: pass after pass it chooses as the host does."""

from __future__ import annotations

import numpy as np
import pytest
from rdrr_format.errors import FormatError
from rdrr_runtime.decode.base import Picks
from rdrr_runtime.decode.mask_stream import HostMasks
from rdrr_runtime.phases.generation_state import State
from rdrr_runtime.phases.sampling.fill_masks import (
    MOST_WINDOW,
    fill_masks,
    pack_rules,
    record_bytes,
    rules_bytes,
    unpack,
)
from rdrr_runtime.records import NO_SLOT, pack_step
from rdrr_runtime.sampling.masks import MaskRules
from support.gpu import Bench

MASK, BASE = 7, 1000


class Window:
    """A window on the device whose picks come from the test instead of a model."""

    def __init__(self, bench: Bench, rules: MaskRules, count: int) -> None:
        arena, self.window = bench.arena, rules.window
        self.bench = bench
        self.state = State.create(arena, 2 * rules.window)
        self.picks = arena.empty("picks", 8 * 2 * rules.window)
        self.rules = arena.empty("rules", rules_bytes(rules.window))
        self.record = arena.empty("record", record_bytes(rules.window))
        first = min(rules.window, count)
        slots = range(BASE, BASE + first)
        bench.device.write(self.rules, pack_rules(rules, count - first))
        bench.device.write(
            self.state.step,
            pack_step([MASK] * first, slots, last_n=first, launched=2 * rules.window),
        )
        self.phases = fill_masks(
            self.state, self.picks, self.rules, self.record, window=self.window, label="t"
        )

    def rows(self) -> tuple[np.ndarray, int]:
        """Return the rows of the step, u32 [rows, 4], and how many of the last are masks."""
        words = np.array(self.bench.words(self.state.step), np.uint32).reshape(-1, 4)
        rows, last_n = int(words[0, 0]), int(words[0, 2])
        assert (words[1 + rows :, 3] == NO_SLOT).all()
        return words[1 : 1 + rows], last_n

    def run(self, ids: list[int], entropies: list[float]):
        data = np.zeros((2 * self.window, 2), np.uint32)
        data[: len(ids), 0] = ids
        data[: len(ids), 1] = np.array(entropies, np.float32).view(np.uint32)
        self.bench.device.write(self.picks, data)
        self.bench.run(self.phases, 2 * self.window)
        return unpack(self.bench.device.read(self.record))


@pytest.mark.parametrize(
    ("window", "tau", "slope", "most"),
    [
        (1, None, 0.0, None),
        (4, 0.5, 0.0, None),
        (16, 0.5, 0.01, None),
        (16, 0.9, 0.05, 3),
        (16, None, 0.02, None),
        (16, 2.0, 0.0, None),
        (MOST_WINDOW, 0.3, 0.0, None),
    ],
)
def test_windows_develop_as_on_the_host(bench, rng, window, tau, slope, most):
    rules, count = MaskRules(MASK, window, tau, slope, most), 45
    on_device = Window(bench, rules, count)
    passes = []

    def pick(ids, base, *, last_n, positions, scaled):
        rows, masks = on_device.rows()
        assert not scaled
        assert (masks, len(rows)) == (last_n, len(ids))
        assert rows[:, 0].tolist() == list(ids)
        assert rows[:, 1].tolist() == list(positions)
        assert rows[:, 3].tolist() == list(range(base, base + len(ids)))
        # Few distinct entropies, so that some are equal.
        entropies = (rng.integers(0, 12, last_n) / 10).astype(np.float32).tolist()
        passes.append((rng.integers(10, 5000, last_n).tolist(), entropies))
        return Picks(*passes[-1])

    on_host, ids = HostMasks(pick, rules, BASE, count, scaled=False), []
    while len(ids) < count:
        expected = on_host.collect()
        result = on_device.run(*passes[-1])
        assert (result.ids, result.rows) == (expected.tokens.ids, expected.rows)
        ids += result.ids
    assert len(ids) == count
    # Passes that were submitted in advance store the last tokens, and then do nothing.
    left = on_device.rows()
    assert left[1] == 0
    assert on_device.run([], []).ids == []
    for _ in range(2):
        assert on_device.rows()[0].tolist() == [[0, 0, 0, NO_SLOT]]
        result = on_device.run([], [])
        assert (result.ids, result.rows) == ([], 0)


def test_a_window_of_more_rows_than_threads_is_refused(bench):
    with pytest.raises(FormatError, match="too large"):
        Window(bench, MaskRules(MASK, MOST_WINDOW + 1, None), 100)
