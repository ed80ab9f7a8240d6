"""The timing of alternatives against each other: interleaved rounds, medians, and significance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from rdrr_device.device import Device
from rdrr_device.timestamps import Timer
from rdrr_format.errors import DeviceError

from rdrr_runtime.exec.executor import Prepared

Times = npt.NDArray[np.float64]
K = TypeVar("K", bound=Hashable)

MARGIN = 0.03
"""Fraction of the time that a candidate must save at least; more if measurements scatter more."""

ROUNDS, SOFTWARE_ROUNDS = 15, 5
PASS_SECONDS = 5e-4
MAX_REPEATS = 64


@dataclass(frozen=True)
class InterleavedTimer:
    """A timer for alternative phases, which run in interleaved rounds.

    Attributes:
        device: The device to run on.
        timer: Measures GPU time.
        rows: Token rows of the pass.
        reset: Writes the step that the phases read.
        rounds: Measurements of each alternative; None for the default of the adapter.
    """

    device: Device
    timer: Timer
    rows: int
    reset: Callable[[], None]
    rounds: int | None = None

    def times(self, alternatives: Mapping[K, Prepared]) -> dict[K, Times]:
        """Return the GPU seconds of each alternative, f64 [rounds].

        Raises:
            DeviceError: The timestamps of the adapter are too coarse.
        """
        self.reset()
        first = next(iter(alternatives.values()))
        once = float(self.timer.run([first], self.rows).seconds[0])
        repeats = max(1, min(MAX_REPEATS, round(PASS_SECONDS / max(once, 1e-9))))
        times = self.interleaved(list(alternatives.values()), repeats)
        return dict(zip(alternatives, times, strict=True))

    def interleaved(self, alternatives: Sequence[Prepared], repeats: int = 1) -> list[Times]:
        """Return the GPU seconds of interleaved runs, f64 [rounds] for each alternative.

        Each round begins with another alternative, so that none always runs first.

        Raises:
            DeviceError: The timestamps of the adapter are too coarse.
        """
        default = SOFTWARE_ROUNDS if self.device.info.software else ROUNDS
        rounds = self.rounds or default
        passes = [prepared * repeats for prepared in alternatives]
        times = np.zeros((len(passes), rounds))
        self.reset()
        self.timer.run(passes, self.rows)
        for turn in range(rounds):
            order = [(turn + index) % len(passes) for index in range(len(passes))]
            self.reset()
            timed = self.timer.run([passes[index] for index in order], self.rows)
            times[order, turn] = timed.seconds / repeats
        if not (times > 0).all():
            raise DeviceError(
                "the timestamps of the adapter are too coarse to compare kernels",
                where=self.device.info.name,
            )
        return list(times)


def better(times: Times, default: Times) -> bool:
    """Return whether the median is faster by more than the margin and the default's scatter."""
    margin = max(MARGIN, scatter(default))
    return float(np.median(times)) < (1 - margin) * float(np.median(default))


def scatter(times: Times) -> float:
    """Return the interquartile range of some times, relative to their median."""
    low, middle, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    return (high - low) / middle


def median_of(times: Times) -> float:
    """Return the median of some times."""
    return float(np.median(times))
