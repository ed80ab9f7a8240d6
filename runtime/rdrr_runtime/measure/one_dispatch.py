"""The time of the parts of a decode pass that runs in one dispatch.

A shader has no clock, so the phases are left out one kind at a time: what the pass takes less is
the time of that kind. A pass without any phase shows what the waits alone take. The last phase,
which moves to the next slot, is left out of every run, so that all runs attend to the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rdrr_device.timestamps import Timer

from rdrr_runtime.compile.lowering.graph import Pass
from rdrr_runtime.exec.executor import Prepared
from rdrr_runtime.exec.persistent.executor import PersistentExecutor
from rdrr_runtime.exec.timing import InterleavedTimer, median_of
from rdrr_runtime.phases.phase import Phase

RUNS = 4
"""Passes that are timed together; their median is one measurement."""


@dataclass(frozen=True)
class PartTime:
    """The time of one kind of phase in one dispatch.

    Attributes:
        kernel: Name of the kernel.
        phases: Phases of this kind in a pass.
        seconds: Time that a pass takes less without them; noise can make it negative.
    """

    kernel: str
    phases: int
    seconds: float


@dataclass(frozen=True)
class OneDispatch:
    """The times of a decode pass in one dispatch.

    Attributes:
        groups: Workgroups.
        threads: Threads of a workgroup.
        seconds: Time of a pass.
        waits: Time of a pass that computes nothing.
        parts: Times of the kinds of phases, in the order of the pass.
    """

    groups: int
    threads: int
    seconds: float
    waits: float
    parts: tuple[PartTime, ...]


def kinds(phases: Sequence[Phase]) -> dict[str, list[Phase]]:
    """Return the phases by the name of their kernel, in the order of the pass."""
    by_name: dict[str, list[Phase]] = {}
    for phase in phases:
        by_name.setdefault(phase.name, []).append(phase)
    return by_name


def time_parts(
    executor: PersistentExecutor,
    whole: Pass,
    reset: Callable[[], None],
    *,
    rounds: int | None = None,
) -> OneDispatch:
    """Measure a pass in one dispatch, and the parts of it.

    Args:
        executor: The executor of the pass.
        whole: The pass, whose last phase moves to the next slot.
        reset: Writes the step that the phases read.
        rounds: Measurements of each part; None for the default of the adapter.

    Raises:
        DeviceError: The device has no timestamps, or they are too coarse.
    """
    parts = kinds(whole.phases[:-1])

    def without(omitted: Collection[Phase]) -> Prepared:
        return executor.prepare_without(whole, (*omitted, whole.phases[-1]))

    passes = [without(()), without(whole.phases), *(without(some) for some in parts.values())]
    device = executor.device
    timer = InterleavedTimer(device, Timer(device), 1, reset, rounds)
    all_of_it, waits, *rest = map(median_of, timer.interleaved(passes, RUNS))
    times = tuple(
        PartTime(name, len(some), all_of_it - left)
        for (name, some), left in zip(parts.items(), rest, strict=True)
    )
    grid = executor.grid
    return OneDispatch(grid.groups, grid.threads, all_of_it, waits, times)
