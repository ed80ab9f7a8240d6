"""Mutual exclusion for a backend: one generation at a time, from any number of threads.

A backend has one key-value cache and one queue of work, so two generations at once would mix their
tokens. A call from another thread waits until the earlier generation has ended, was closed or was
garbage-collected. A call from the same thread cannot wait for itself, so it ends the generation
that the thread left unfinished. The rules are in docs/THREADS.md.

This module does not know what a holder of the lock runs.
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
"""Seconds that a thread waits for the generation of another thread by default."""

COLLECT_AFTER = 1.0
"""Seconds after which a waiting thread runs the garbage collector: an unreachable generation in a
reference cycle would otherwise hold the lock until Python happens to collect it."""


class Lease:
    """The exclusive right to use a backend, from `BackendLock.begin` until `end`.

    Args:
        lock: The lock of the backend.
        close: Frees the holder's state in the backend; called once, when the lease ends.
    """

    def __init__(self, lock: BackendLock, close: Callable[[], None]) -> None:
        self._lock = lock
        self._close = close
        self.thread = threading.get_ident()
        self.runs_in: int | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Use the backend for the length of a block, in any thread.

        Raises:
            GenerationError: The lease has ended, or this process was forked after it began.
        """
        self._lock.enter(self)
        try:
            yield
        finally:
            self._lock.leave(self)

    def end(self) -> None:
        """End the lease; a lease that has already ended stays so."""
        self._lock.end(self)

    def close(self) -> None:
        """Free the holder's state in the backend, once."""
        close, self._close = self._close, _nothing
        close()


class BackendLock:
    """The lock of one backend; threads get leases in the order in which they ask.

    Args:
        timeout: Seconds that a thread waits for a lease; None to wait without limit.
    """

    def __init__(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        self.timeout = timeout
        self._process = os.getpid()
        # Reentrant, since the garbage collector may end a lease while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._current: Lease | None = None
        self._waiting: deque[object] = deque()
        self._closed = False

    def begin(self, close: Callable[[], None] | None = None) -> Lease:
        """Wait until no other thread has a lease, then take one.

        Args:
            close: Frees the holder's state in the backend; called when the lease ends.

        Raises:
            GenerationError: The wait timed out, the model is closed, this thread is within a step
                of its own lease, or this process was forked after the model was loaded.
        """
        self._check_process()
        lease = Lease(self, close or _nothing)
        with self._changed:
            if self._is_mine():
                self._supersede()
            self._wait(self._is_free)
            self._check_open()
            self._current = lease
        return lease

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the backend for the length of a block, as one lease with one step.

        Raises:
            GenerationError: As for `begin`.
        """
        lease = self.begin()
        try:
            with lease.step():
                yield
        finally:
            lease.end()

    def await_others(self) -> None:
        """Wait until no other thread has a lease, without taking one.

        Raises:
            GenerationError: The wait timed out, or this process was forked after the model was
                loaded.
        """
        self._check_process()
        with self._changed:
            if not self._is_mine():
                self._wait(self._is_free)

    def enter(self, lease: Lease) -> None:
        """Begin a step of a lease, see `Lease.step`."""
        self._check_process()
        with self._changed:
            self._check_open()
            if lease is not self._current:
                raise GenerationError(
                    "another call on this model has ended this generation",
                    hint="finish one before the next in the same thread, or load the model twice",
                )
            lease.thread = lease.runs_in = threading.get_ident()

    def leave(self, lease: Lease) -> None:
        """End a step of a lease."""
        with self._changed:
            lease.runs_in = None
            self._changed.notify_all()

    def end(self, lease: Lease) -> None:
        """End a lease, see `Lease.end`."""
        if os.getpid() != self._process:
            return
        with self._changed:
            if lease is self._current:
                self._end_current()

    def close(self) -> bool:
        """Refuse further leases, wait for the current lease's step, and end that lease.

        Returns:
            Whether the caller must free the backend; False if that has happened already, and in a
            forked process.

        Raises:
            GenerationError: The wait for the step timed out, or this thread is within it.
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
        """End the unfinished lease of this thread."""
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
        """Wait until `is_ready`, first come, first served."""
        ticket = object()
        end = None if self.timeout is None else time.monotonic() + self.timeout
        self._waiting.append(ticket)
        try:
            has_collected = False
            while not (is_ready() and self._waiting[0] is ticket):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise _too_long(self.timeout)
                pause = COLLECT_AFTER if not has_collected else left
                self._changed.wait(pause if left is None else min(pause or left, left))
                if not has_collected and not is_ready():
                    has_collected = True
                    gc.collect()
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise GenerationError("the model is closed", hint="load it again")

    def _check_process(self) -> None:
        # Checked before a lock is taken: a fork copies held locks, and no thread of the new process
        # would release them.
        if os.getpid() != self._process:
            raise GenerationError(
                "the model was loaded by another process, which this one was forked from",
                expected=f"process {self._process}",
                found=f"process {os.getpid()}",
                hint="load it after the fork, or start processes with the method `spawn`",
            )


def _nothing() -> None:
    """Do nothing; for holders without state in the backend."""


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
