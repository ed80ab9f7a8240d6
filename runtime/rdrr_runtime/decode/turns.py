"""Who may use a backend: one generation at a time, whichever threads ask.

A backend has one key-value cache and one queue of work, so two generations in it at once would mix
their tokens. A call from another thread waits until the generation before it has ended, been
closed or been collected. A call from the same thread cannot wait for itself: it ends the generation
that it left unfinished. The rules are in docs/THREADS.md.

What is run in a turn is not this module's business.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rdrr_format.errors import GenerationError

DEFAULT_TIMEOUT = 600.0
"""Seconds that a thread waits for the generation of another one unless told otherwise."""

COLLECT_AFTER = 1.0
"""Seconds after which a waiting thread has unreachable generations collected: one that is part of a
reference cycle would keep its turn until Python's collector happens to run."""


class Turn:
    """The right to use a backend, from `Turns.begin` until `end`.

    Args:
        turns: Who gave it.
        close: Frees what its holder has in the backend; called once, when the turn ends.
    """

    def __init__(self, turns: Turns, close: Callable[[], None]) -> None:
        self._turns = turns
        self._close = close
        self.thread = threading.get_ident()
        self.runs_in: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Use the backend for the length of a block, in any thread.

        Raises:
            GenerationError: The turn has ended, or the process is another one.
        """
        self._turns.enter(self)
        try:
            yield
        finally:
            self._turns.leave(self)

    def end(self) -> None:
        """Give the turn back; once it has ended this does nothing."""
        self._turns.end(self)

    def close(self) -> None:
        """Call what frees the holder's part of the backend."""
        close, self._close = self._close, _nothing
        close()


class Turns:
    """Gives turns at one backend.

    Args:
        timeout: Seconds that a thread waits for another one; None for as long as it takes.
    """

    def __init__(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        self.timeout = timeout
        self._process = os.getpid()
        # The lock can be taken twice by one thread: the collector may end a turn within a block.
        self._changed = threading.Condition(threading.RLock())
        self._current: Turn | None = None
        self._waiting: deque[object] = deque()
        self._closed = False

    def begin(self, close: Callable[[], None] | None = None) -> Turn:
        """Wait until no other thread has the turn, then take it.

        Args:
            close: Frees what the holder has in the backend; called when the turn ends.

        Raises:
            GenerationError: The wait took too long, the model is closed, this thread is within a
                step of its own turn, or the process is another one.
        """
        self._check_process()
        turn = Turn(self, close or _nothing)
        with self._changed:
            if self._is_mine():
                self._supersede()
            self._wait(self._is_free)
            self._check_open()
            self._current = turn
        return turn

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the backend for the length of a block, as one turn with one step.

        Raises:
            GenerationError: As for `begin`.
        """
        turn = self.begin()
        try:
            with turn.step():
                yield
        finally:
            turn.end()

    def await_others(self) -> None:
        """Wait until no other thread has the turn, without taking it.

        Raises:
            GenerationError: The wait took too long, or the process is another one.
        """
        self._check_process()
        with self._changed:
            if not self._is_mine():
                self._wait(self._is_free)

    def enter(self, turn: Turn) -> None:
        """Begin a step of a turn, see `Turn.step`."""
        self._check_process()
        with self._changed:
            self._check_open()
            if turn is not self._current:
                raise GenerationError(
                    "another call on this model has ended this generation",
                    hint="finish one before the next in the same thread, or load the model twice",
                )
            turn.thread = turn.runs_in = threading.get_ident()

    def leave(self, turn: Turn) -> None:
        """End a step of a turn."""
        with self._changed:
            turn.runs_in = None
            self._changed.notify_all()

    def end(self, turn: Turn) -> None:
        """End a turn, see `Turn.end`."""
        if os.getpid() != self._process:
            return
        with self._changed:
            if turn is self._current:
                self._end_current()

    def close(self) -> bool:
        """Let no turn begin any more, and end the one that there is after its step.

        Returns:
            Whether the backend is to be freed: not twice, and not by a forked process.

        Raises:
            GenerationError: The step took too long, or this thread is within it.
        """
        if os.getpid() != self._process:
            return False
        with self._changed:
            if self._closed:
                return False
            held = self._current
            if held is not None and held.runs_in == threading.get_ident():
                raise _within_step("close")
            self._closed = True
            self._changed.notify_all()
            try:
                self._wait(lambda: self._current is None or self._current.runs_in is None)
            except GenerationError:
                self._closed = False
                raise
            self._end_current()
            return True

    def _is_mine(self) -> bool:
        held = self._current
        return held is not None and held.thread == threading.get_ident()

    def _is_free(self) -> bool:
        return self._current is None or self._closed

    def _supersede(self) -> None:
        """End the turn of this thread."""
        held = self._current
        if held is not None and held.runs_in is not None:
            raise _within_step("begin")
        self._end_current()

    def _end_current(self) -> None:
        held, self._current = self._current, None
        if held is not None:
            held.close()
        self._changed.notify_all()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait in line, first come, first served."""
        place = object()
        end = None if self.timeout is None else time.monotonic() + self.timeout
        self._waiting.append(place)
        try:
            collected = False
            while not (is_ready() and self._waiting[0] is place):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise _too_long(self.timeout)
                pause = COLLECT_AFTER if not collected else left
                self._changed.wait(pause if left is None else min(pause or left, left))
                if not collected and not is_ready():
                    collected = True
                    gc.collect()
        finally:
            self._waiting.remove(place)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise GenerationError("the model is closed", hint="load it again")

    def _check_process(self) -> None:
        # Before any lock: a fork copies locks as they are, and nobody is left to release them.
        if os.getpid() != self._process:
            raise GenerationError(
                "the model was loaded by another process, which this one was forked from",
                expected=f"process {self._process}",
                found=f"process {os.getpid()}",
                hint="load it after the fork, or start processes with the method `spawn`",
            )


def _nothing() -> None:
    """Free nothing."""


def _too_long(seconds: float | None) -> GenerationError:
    return GenerationError(
        f"waited {seconds:g} seconds for the generation of another thread",
        hint="read it to its end or close it, load the model once more, or allow more time with "
        "busy_timeout",
    )


def _within_step(verb: str) -> GenerationError:
    return GenerationError(
        f"cannot {verb} within a step of a generation on the same model",
        hint="do it between two pieces of the text",
    )
