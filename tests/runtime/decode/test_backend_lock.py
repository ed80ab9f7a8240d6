"""Leases of several threads at one backend, and what ends a lease."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest
from rdrr_format.errors import GenerationError
from rdrr_runtime.decode.backend_lock import BackendLock
from support.deadlines import HANGS, until


class Worker:
    """A thread that runs calls one after the other."""

    def __init__(self, *calls: Callable[[], object]) -> None:
        self.results: list[object] = []
        self.error: BaseException | None = None
        self._calls = calls
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for call in self._calls:
                self.results.append(call())
        except BaseException as error:
            self.error = error

    def join(self) -> list[object]:
        self._thread.join(HANGS)
        assert not self._thread.is_alive(), "the thread is still waiting"
        if self.error is not None:
            raise self.error
        return self.results


def waiters(lock: BackendLock) -> int:
    return len(lock._waiting)


def test_other_threads_wait_for_the_end_of_a_turn_and_follow_in_order():
    lock, order = BackendLock(), []
    first = lock.begin()

    def take(name: str) -> None:
        lease = lock.begin()
        order.append(name)
        lease.end()

    workers = []
    for count, name in enumerate("abc", start=1):
        workers.append(Worker(lambda name=name: take(name)))
        until(lambda count=count: waiters(lock) == count, "a thread does not wait")
    assert order == []
    order.append("first")
    first.end()
    for worker in workers:
        worker.join()
    assert order == ["first", "a", "b", "c"]


def test_a_call_in_the_same_thread_ends_its_earlier_turn_and_frees_the_state():
    lock, freed = BackendLock(), []
    first = lock.begin(lambda: freed.append("first"))
    with first.step():
        pass
    second = lock.begin(lambda: freed.append("second"))
    assert freed == ["first"]
    with pytest.raises(GenerationError, match="another call"), first.step():
        raise AssertionError("the step of an ended lease")
    with second.step():
        pass
    first.end()  # has no effect, since the lease has ended
    with second.step():
        pass
    second.end()
    second.end()
    assert freed == ["first", "second"]


def test_a_turn_belongs_to_the_thread_that_used_it_last():
    lock = BackendLock(timeout=0)
    lease = lock.begin()

    def step() -> None:
        with lease.step():
            pass

    Worker(step).join()
    with pytest.raises(GenerationError, match="waited 0 seconds"):
        lock.begin()
    step()
    lock.begin().end()


def test_an_unreachable_turn_is_garbage_collected():
    lock = BackendLock(timeout=HANGS)

    def holder():
        lease = lock.begin()
        try:
            yield
        finally:
            lease.end()

    def leave_in_a_cycle() -> None:
        runs = holder()
        next(runs)
        cycle = [runs]
        cycle.append(cycle)

    gc.collect()
    gc.disable()
    try:
        Worker(leave_in_a_cycle).join()
        lock.begin().end()
    finally:
        gc.enable()


def test_a_turn_with_a_live_holder_is_not_garbage_collected():
    lock = BackendLock(timeout=0.01)
    held = Worker(lock.begin).join()
    with pytest.raises(GenerationError, match=r"waited 0\.01 seconds") as caught:
        lock.begin()
    assert "busy_timeout" in str(caught.value.hint)
    assert waiters(lock) == 0
    held[0].end()
    lock.begin().end()


def test_close_waits_for_the_step_and_raises_in_waiting_threads():
    lock, freed = BackendLock(), []
    in_step, go_on = threading.Event(), threading.Event()

    def generate() -> None:
        lease = lock.begin(lambda: freed.append("runs"))
        with lease.step():
            in_step.set()
            go_on.wait(HANGS)
            assert not freed, "the state was freed during a step"
        with lease.step():
            raise AssertionError("a step of a closed model")

    running = Worker(generate)
    assert in_step.wait(HANGS)
    waiting = Worker(lock.begin)
    until(lambda: waiters(lock) == 1, "the other thread does not wait")
    closing = Worker(lock.close)
    with pytest.raises(GenerationError, match="closed"):
        waiting.join()
    go_on.set()
    assert closing.join() == [True]
    assert freed == ["runs"]
    with pytest.raises(GenerationError, match="closed"):
        running.join()
    with pytest.raises(GenerationError, match="closed"):
        lock.begin()
    assert lock.close() is False


def test_close_times_out_on_a_step_that_does_not_end_and_the_model_stays_open():
    lock = BackendLock(timeout=0.01)
    in_step, go_on = threading.Event(), threading.Event()

    def generate() -> None:
        with lock.exclusive():
            in_step.set()
            go_on.wait(HANGS)

    running = Worker(generate)
    assert in_step.wait(HANGS)
    with pytest.raises(GenerationError, match="waited"):
        lock.close()
    go_on.set()
    running.join()
    lock.begin().end()
    assert lock.close() is True


@pytest.mark.parametrize("call", ["begin", "close"])
def test_a_thread_cannot_begin_or_close_within_its_own_step(call):
    lock = BackendLock()
    with (
        lock.exclusive(),
        pytest.raises(GenerationError, match=f"cannot {call} within a step"),
    ):
        getattr(lock, call)()
    getattr(lock, call)()


def test_an_error_within_a_step_ends_it():
    lock = BackendLock(timeout=0)
    with pytest.raises(ZeroDivisionError), lock.exclusive():
        raise ZeroDivisionError
    Worker(lambda: lock.begin().end()).join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_gets_an_error_even_if_a_lock_was_held():
    lock = BackendLock()
    lease = lock.begin()
    with lock._changed:
        child = os.fork()
    if child == 0:
        refused = []
        for call in (lock.begin, lock.await_others, lease.step().__enter__):
            try:
                call()
            except GenerationError as error:
                refused.append("another process" in str(error))
        lease.end()
        os._exit(0 if refused == [True] * 3 and lock.close() is False else 1)
    assert os.waitpid(child, 0)[1] == 0
    with lease.step():
        pass
