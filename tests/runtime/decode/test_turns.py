"""Turns of several threads at one backend, and what ends a turn."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest
from rdrr_format.errors import GenerationError
from rdrr_runtime.decode.turns import Turns
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


def waiters(turns: Turns) -> int:
    return len(turns._waiting)


def test_other_threads_wait_for_the_end_of_a_turn_and_follow_in_order():
    turns, order = Turns(), []
    first = turns.begin()

    def take(name: str) -> None:
        turn = turns.begin()
        order.append(name)
        turn.end()

    workers = []
    for count, name in enumerate("abc", start=1):
        workers.append(Worker(lambda name=name: take(name)))
        until(lambda count=count: waiters(turns) == count, "a thread does not wait")
    assert order == []
    order.append("first")
    first.end()
    for one in workers:
        one.join()
    assert order == ["first", "a", "b", "c"]


def test_a_call_in_the_same_thread_ends_its_earlier_turn_and_frees_the_state():
    turns, freed = Turns(), []
    first = turns.begin(lambda: freed.append("first"))
    with first.step():
        pass
    second = turns.begin(lambda: freed.append("second"))
    assert freed == ["first"]
    with pytest.raises(GenerationError, match="another call"), first.step():
        raise AssertionError("the step of an ended turn")
    with second.step():
        pass
    first.end()  # has no effect, since the turn has ended
    with second.step():
        pass
    second.end()
    second.end()
    assert freed == ["first", "second"]


def test_a_turn_belongs_to_the_thread_that_used_it_last():
    turns = Turns(timeout=0)
    turn = turns.begin()

    def step() -> None:
        with turn.step():
            pass

    Worker(step).join()
    with pytest.raises(GenerationError, match="waited 0 seconds"):
        turns.begin()
    step()
    turns.begin().end()


def test_an_unreachable_turn_is_garbage_collected():
    turns = Turns(timeout=HANGS)

    def holder():
        turn = turns.begin()
        try:
            yield
        finally:
            turn.end()

    def leave_in_a_cycle() -> None:
        runs = holder()
        next(runs)
        cycle = [runs]
        cycle.append(cycle)

    gc.collect()
    gc.disable()
    try:
        Worker(leave_in_a_cycle).join()
        turns.begin().end()
    finally:
        gc.enable()


def test_a_turn_with_a_live_holder_is_not_garbage_collected():
    turns = Turns(timeout=0.01)
    held = Worker(turns.begin).join()
    with pytest.raises(GenerationError, match=r"waited 0\.01 seconds") as caught:
        turns.begin()
    assert "busy_timeout" in str(caught.value.hint)
    assert waiters(turns) == 0
    held[0].end()
    turns.begin().end()


def test_close_waits_for_the_step_and_raises_in_waiting_threads():
    turns, freed = Turns(), []
    in_step, go_on = threading.Event(), threading.Event()

    def generate() -> None:
        turn = turns.begin(lambda: freed.append("runs"))
        with turn.step():
            in_step.set()
            go_on.wait(HANGS)
            assert not freed, "the state was freed during a step"
        with turn.step():
            raise AssertionError("a step of a closed model")

    running = Worker(generate)
    assert in_step.wait(HANGS)
    waiting = Worker(turns.begin)
    until(lambda: waiters(turns) == 1, "the other thread does not wait")
    closing = Worker(turns.close)
    with pytest.raises(GenerationError, match="closed"):
        waiting.join()
    go_on.set()
    assert closing.join() == [True]
    assert freed == ["runs"]
    with pytest.raises(GenerationError, match="closed"):
        running.join()
    with pytest.raises(GenerationError, match="closed"):
        turns.begin()
    assert turns.close() is False


def test_close_times_out_on_a_step_that_does_not_end_and_the_model_stays_open():
    turns = Turns(timeout=0.01)
    in_step, go_on = threading.Event(), threading.Event()

    def generate() -> None:
        with turns.exclusive():
            in_step.set()
            go_on.wait(HANGS)

    running = Worker(generate)
    assert in_step.wait(HANGS)
    with pytest.raises(GenerationError, match="waited"):
        turns.close()
    go_on.set()
    running.join()
    turns.begin().end()
    assert turns.close() is True


@pytest.mark.parametrize("call", ["begin", "close"])
def test_a_thread_cannot_begin_or_close_within_its_own_step(call):
    turns = Turns()
    with (
        turns.exclusive(),
        pytest.raises(GenerationError, match=f"cannot {call} within a step"),
    ):
        getattr(turns, call)()
    getattr(turns, call)()


def test_an_error_within_a_step_ends_it():
    turns = Turns(timeout=0)
    with pytest.raises(ZeroDivisionError), turns.exclusive():
        raise ZeroDivisionError
    Worker(lambda: turns.begin().end()).join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_gets_an_error_even_if_a_lock_was_held():
    turns = Turns()
    turn = turns.begin()
    with turns._changed:
        child = os.fork()
    if child == 0:
        refused = []
        for call in (turns.begin, turns.await_others, turn.step().__enter__):
            try:
                call()
            except GenerationError as error:
                refused.append("another process" in str(error))
        turn.end()
        os._exit(0 if refused == [True] * 3 and turns.close() is False else 1)
    assert os.waitpid(child, 0)[1] == 0
    with turn.step():
        pass
