"""The automatic readback interval, on a fake clock: up to 8 tokens, fewer where tokens are slow."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from rdrr_format.errors import UsageError
from rdrr_runtime.backend import BackendInfo
from rdrr_runtime.decode.autoregressive import Autoregressive
from rdrr_runtime.decode.base import Counts, Job
from rdrr_runtime.decode.chooser import Chooser
from rdrr_runtime.decode.interval import AUTO, ReadbackInterval, check_interval
from rdrr_runtime.decode.rules import TokenRules


class TimedDevice:
    """A backend whose passes run on a device that needs a given time for each.

    The host waits for the ids of a fence until the passes before it have run. The id of a token is
    the slot that it was computed in.

    Args:
        seconds: Time of a pass; or a list of the times of the first passes, the last of which holds
            for all further ones.
        ahead: Passes that it recommends to submit before a readback.
    """

    def __init__(self, seconds: float | list[float], ahead: int = 2) -> None:
        self.info = BackendInfo("fake", None, 1000, 0, 0)
        self.ahead, self.now = ahead, 0.0
        times = [seconds] if isinstance(seconds, float) else seconds
        self._seconds = lambda at: times[min(at, len(times) - 1)]
        self._idle_from = 0.0
        self._passes = self._collected = 0
        self._fences: list[tuple[int, float]] = []

    def clock(self) -> float:
        return self.now

    def feed(self, ids, base, *, sampled=False):
        del sampled
        self._first = base + len(ids)
        return self

    def submit(self, count: int) -> None:
        for _ in range(count):
            self._idle_from = max(self._idle_from, self.now) + self._seconds(self._passes)
            self._passes += 1

    def fence(self) -> None:
        self._fences.append((self._passes, self._idle_from))

    def collect(self) -> list[list[int]]:
        end, ready = self._fences.pop(0)
        self.now = max(self.now, ready)
        ids = list(range(self._first + self._collected, self._first + end))
        self._collected = end
        return [ids]


def groups(backend: TimedDevice, tokens: int, *, receiver: float = 0.0, interval=AUTO):
    """Return the groups of ids and when each came; the receiver takes some seconds for each."""
    strategy = Autoregressive(interval, clock=backend.clock)
    readbacks, times = [], []
    for ids in strategy.run(Job([1], 0, tokens), Chooser(backend, TokenRules(), [1]), Counts()):
        readbacks.append(ids)
        times.append(backend.now)
        backend.now += receiver
    return readbacks, times


@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_a_fast_device_is_soon_read_every_8_tokens(ahead):
    readbacks, _ = groups(TimedDevice(0.001, ahead), 100)
    sizes = [len(ids) for ids in readbacks]
    assert sizes[0] == 1
    assert sum(sizes[: sizes.index(8)]) <= 16 + ahead
    assert set(sizes[sizes.index(8) : -1]) == {8}


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("seconds", [0.06, 0.33])
def test_tokens_that_take_longer_than_the_target_come_one_by_one(seconds, ahead):
    readbacks, times = groups(TimedDevice(seconds, ahead), 30)
    assert [len(ids) for ids in readbacks] == [1] * 30
    assert max(after - before for before, after in pairwise(times)) < 1.01 * seconds


def test_at_speeds_in_between_readbacks_come_within_the_target():
    for seconds, expected in ((0.007, 7), (0.012, 4), (0.02, 2), (0.03, 1)):
        readbacks, times = groups(TimedDevice(seconds), 100)
        assert {len(ids) for ids in readbacks[6:-1]} == {expected}
        assert max(after - before for before, after in pairwise(times)) <= 0.05


def test_a_device_that_becomes_slow_is_read_more_often_and_one_that_recovers_less_often():
    seconds = [*[0.001] * 40, *[0.1] * 40, *[0.001] * 120]
    sizes = [len(group) for group in groups(TimedDevice(seconds), 200)[0]]
    slow = sizes.index(8)
    assert sizes.index(1, slow) > slow
    assert sizes[-2] == 8


def test_a_slow_receiver_does_not_make_readbacks_more_frequent():
    readbacks, _ = groups(TimedDevice(0.001), 100, receiver=1.0)
    assert len(readbacks[-2]) == 8


@pytest.mark.parametrize("most", range(1, 20))
def test_ids_do_not_depend_on_the_interval(most):
    for seconds in (0.001, 0.012, 0.3, [0.3, 0.001, 0.02]):
        automatic, _ = groups(TimedDevice(seconds), most)
        fixed, _ = groups(TimedDevice(seconds), most, interval=1)
        assert [*chain(*automatic)] == [*chain(*fixed)] == list(range(1, most + 1))


def test_ids_that_were_ready_at_once_at_most_double_the_interval():
    interval, sizes = ReadbackInterval(AUTO), []
    for _ in range(6):
        sizes.append(interval.tokens)
        interval.observe(interval.tokens, 0.0)
    assert sizes == [1, 2, 4, 8, 8, 8]


def test_a_fixed_interval_does_not_adapt():
    interval = ReadbackInterval(5)
    interval.observe(5, 100.0)
    assert interval.tokens == 5


def test_an_interval_is_auto_or_a_whole_number():
    for sound in (AUTO, 1, 8, 1000):
        check_interval(sound)
    for wrong in ("Auto", "8", "", 0, -1, 1.5, None, True):
        with pytest.raises(UsageError, match="--interval"):
            check_interval(wrong, "--interval")
