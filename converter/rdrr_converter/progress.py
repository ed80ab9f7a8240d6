"""The progress of a conversion, which callers may follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressEvent:
    """The progress of a stage.

    Attributes:
        stage: `scan`, `write` or `verify`.
        name: Tensor of the chunk that was just finished.
        done: Number of weights that this stage has processed.
        total: Number of weights of this stage.
    """

    stage: str
    name: str
    done: int
    total: int


ProgressCallback = Callable[[ProgressEvent], None]


class Progress:
    """A counter that reports progress to a callback; it is used from one thread only.

    Args:
        callback: Called with every event.
        check: Called before every event; raises an error that has occurred in the background.
    """

    def __init__(
        self, callback: ProgressCallback | None, check: Callable[[], None] = lambda: None
    ) -> None:
        self._callback, self._check = callback, check
        self._stage, self._done, self._total = "", 0, 0

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of `total` weights."""
        self._stage, self._done, self._total = stage, 0, total

    def advance(self, name: str, amount: int) -> None:
        """Count `amount` more weights, of tensor `name`."""
        self._check()
        self._done += amount
        if self._callback is not None:
            self._callback(ProgressEvent(self._stage, name, self._done, self._total))
