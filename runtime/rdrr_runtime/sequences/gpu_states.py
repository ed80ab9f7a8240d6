"""The copies of a sequence's recurrent states on the GPU."""

from __future__ import annotations

from rdrr_runtime.exec.executor import Executor, Prepared
from rdrr_runtime.phases.cache.state_cache import StateCache


class GpuStateCopies:
    """The states of the single sequence with their copies, see `state_positions.StateCopies`.

    Args:
        executor: Runs the copies.
        states: The states and the memory of their copies.
    """

    def __init__(self, executor: Executor, states: StateCache) -> None:
        self._executor, self._states = executor, states
        self._prepared: dict[tuple[str, int], Prepared] = {}

    def save(self, index: int) -> None:
        """Copy the states into the copy `index`, behind all passes submitted so far."""
        self._copy("save", index)

    def restore(self, index: int) -> None:
        """Copy the copy `index` into the states."""
        self._copy("restore", index)

    def _copy(self, what: str, index: int) -> None:
        key = what, index
        if key not in self._prepared:
            pair = self._states, self._states.copies[index]
            source, target = pair if what == "save" else pair[::-1]
            phases = source.copy_to(target, f"states.{what}")
            self._prepared[key] = self._executor.prepare(phases)
        self._executor.run(self._prepared[key], 1)
