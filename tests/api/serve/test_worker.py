"""The worker: many jobs at once, each with its own text, and what happens when it fails."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence

import pytest
import rdrr
from rdrr.serve import worker as worker_module
from rdrr.serve.jobs import Event, Job
from rdrr.serve.metrics import Metrics
from rdrr.serve.requests import CompletionRequest
from rdrr.serve.texts import Service, Texts
from rdrr.serve.worker import BusyError, Worker
from rdrr_format.errors import DeviceError, GenerationError, StoreError
from rdrr_runtime.decode.scheduler import Scheduler
from rdrr_runtime.sampling.params import SamplingParams
from support.choices import assert_same_ids

PROMPTS = ("And it came to pass", "In the beginning", "Thou shalt not", "The LORD is my shepherd")


class Received:
    """What a job delivers."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __call__(self, event: Event) -> None:
        self._events.put(event)

    def next(self) -> Event:
        return self._events.get(timeout=300)

    def rest(self) -> list[Event]:
        events = [self.next()]
        while not events[-1].is_last:
            events.append(self.next())
        return events


def job(prompt: Sequence[int], most: int = 12, **options) -> tuple[Job, Received]:
    received = Received()
    return Job(prompt, received, most, **options), received


def ids_of(received: Received) -> list[int]:
    return [token_id for event in received.rest() for token_id in event.ids]


@pytest.mark.parametrize("name", ["worker", pytest.param("gpu_worker", marks=pytest.mark.thorough)])
def test_jobs_that_run_together_get_the_texts_that_they_get_alone(request, name):
    worker = request.getfixturevalue(name)
    model = worker.model
    prompts = [model.encode(prompt) for prompt in PROMPTS]
    sampled = SamplingParams(temperature=0.9, seed=3, top_k=20)
    jobs = [job(prompt) for prompt in prompts]
    jobs += [job(prompt, logprobs=1) for prompt in prompts[:2]]
    jobs += [job(prompt, sampling=sampled) for prompt in prompts[:2]]
    worker.submit(*(each for each, _ in jobs))
    greedy, alone, *_ = [[ids_of(got) for _, got in part] for part in (jobs[:4], jobs[4:6])]
    again = [ids_of(got) for _, got in jobs[6:]]
    for ids, expected, prompt in zip(greedy, alone, prompts, strict=False):
        assert_same_ids(ids, expected, prompt, model.package)
    assert len({tuple(ids) for ids in greedy}) == len(prompts)
    repeated = [job(prompt, sampling=sampled) for prompt in prompts[:2]]
    worker.submit(*(each for each, _ in repeated))
    assert [ids_of(got)[:4] for _, got in repeated] == [ids[:4] for ids in again]
    assert worker.jobs == 0


@pytest.mark.parametrize("name", ["worker", pytest.param("gpu_worker", marks=pytest.mark.thorough)])
def test_a_text_that_a_stop_string_ends_leaves_the_ids_of_the_others_in_order(request, name):
    worker = request.getfixturevalue(name)  # only a GPU runs ahead of what is read
    model, restarts = worker.model, worker.restarts
    first, second = (model.encode(prompt) for prompt in PROMPTS[:2])
    alone, received = job(second)
    worker.submit(alone)
    expected = ids_of(received)
    begin, received = job(first, 3)
    worker.submit(begin)
    stop = "".join(event.text for event in received.rest()).strip()[-2:]
    jobs = [job(first, stop=[stop]), job(second)]
    worker.submit(*(each for each, _ in jobs))
    assert jobs[0][1].rest()[-1].stop == stop
    assert_same_ids(ids_of(jobs[1][1]), expected, second, model.package)
    assert worker.restarts == restarts


def test_a_job_that_nobody_waits_for_gives_its_place_to_another(worker):
    prompt = worker.model.encode(PROMPTS[0])
    endless = [job(prompt, 150) for _ in range(worker.slots + 1)]
    endless += [job(prompt, 150, logprobs=0) for _ in range(2)]
    worker.submit(*(each for each, _ in endless))
    endless[0][1].next()
    worker.cancel(*(each for each, _ in endless))
    after, received = job(prompt, 3)
    worker.submit(after)
    assert len(ids_of(received)) == 3
    assert worker.jobs == 0


class CountingLoop:
    """An event loop that counts how often it is woken, and calls at once."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def call_soon_threadsafe(self, call, news: Sequence[object]) -> None:
        self.calls.append(len(news))
        call(news)


def test_the_events_of_a_step_wake_their_event_loop_once(worker):
    prompts = [worker.model.encode(prompt) for prompt in PROMPTS[: worker.slots]]
    loop = CountingLoop()
    jobs = [job(prompt, 9, loop=loop) for prompt in prompts]
    plain = [job(prompt, 9) for prompt in prompts]
    for batch in (jobs, plain):
        worker.submit(*(each for each, _ in batch))
        batch[:] = [(each, ids_of(received)) for each, received in batch]
    assert [ids for _, ids in jobs] == [ids for _, ids in plain]
    assert max(loop.calls) == len(prompts)
    assert len(loop.calls) < sum(loop.calls)


def test_events_for_a_closed_loop_do_not_end_the_worker(worker):
    prompt = worker.model.encode(PROMPTS[0])
    closed = asyncio.new_event_loop()
    closed.close()
    forgotten, _ = job(prompt, 3, loop=closed)
    after, received = job(prompt, 3)
    worker.submit(forgotten, after)
    assert len(ids_of(received)) == 3
    assert worker.restarts == 0


def test_too_many_jobs_are_refused_all_together(worker):
    prompt = worker.model.encode(PROMPTS[0])
    many = [job(prompt, 2)[0] for _ in range(17)]
    with pytest.raises(BusyError, match="too many requests"):
        worker.submit(*many)
    assert worker.jobs == 0


def test_an_error_of_one_job_is_no_error_of_the_others(worker):
    prompt = worker.model.encode(PROMPTS[0])
    wrong, refused = job(prompt, 4, response_format={"type": "poem"})
    right, received = job(prompt, 4)
    worker.submit(wrong, right)
    assert "response_format" in str(refused.next().error)
    assert len(ids_of(received)) == 4
    assert worker.restarts == 0


def test_texts_that_cannot_go_on_end_and_others_follow(worker, monkeypatch):
    prompt = worker.model.encode(PROMPTS[0])

    def fail(_: object) -> None:
        monkeypatch.undo()
        raise GenerationError("the logits are not finite")

    monkeypatch.setattr(Scheduler, "step", fail)
    jobs = [job(prompt, 4) for _ in range(2)]
    worker.submit(*(each for each, _ in jobs))
    assert all("finite" in str(received.next().error) for _, received in jobs)
    after, received = job(prompt, 4)
    worker.submit(after)
    assert len(ids_of(received)) == 4
    assert worker.restarts == 0


def test_a_text_whose_server_has_stopped_is_no_fault_of_the_model(worker):
    service = Service(worker, "small-llama", (), Metrics(), 0)
    prompt = worker.model.encode(PROMPTS[0])
    restarts = worker.restarts

    async def begin() -> Texts:
        return Texts(service, CompletionRequest(prompt=prompt), [prompt], 20)

    asyncio.run(begin())  # which closes the loop
    after, received = job(prompt, 4)
    worker.submit(after)
    assert len(ids_of(received)) == 4
    while worker.jobs:
        threading.Event().wait(0.02)
    assert (worker.restarts, worker.is_alive) == (restarts, True)


def test_a_failed_model_is_loaded_again_and_its_jobs_are_told(shallow_package, monkeypatch):
    monkeypatch.setattr(worker_module, "RESTART_SECONDS", 0.0)
    opened = []

    def open_model() -> rdrr.Model:
        opened.append(rdrr.load(shallow_package, backend="cpu", context=64))
        return opened[-1]

    started = Worker(open_model, slots=2, queue=4)
    model = started.start()
    prompt = model.encode(PROMPTS[0])
    entered = threading.Event()

    def fail(*_: object, **__: object) -> None:
        entered.set()
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(model._opened.backend.batch(2, 64), "greedy", fail)
    jobs = [job(prompt, 3) for _ in range(2)]
    started.submit(*(each for each, _ in jobs))
    assert all(isinstance(received.next().error, DeviceError) for _, received in jobs)
    assert entered.is_set()
    while not started.is_alive or started.model is model:
        threading.Event().wait(0.02)
    after, received = job(prompt, 3)
    started.submit(after)
    assert len(ids_of(received)) == 3
    assert (started.restarts, len(opened)) == (1, 2)
    started.stop(60)


def test_a_model_that_cannot_be_loaded_is_an_error_at_the_start(tmp_path):
    with pytest.raises(StoreError):
        Worker(lambda: rdrr.load(tmp_path / "none"), slots=1, queue=1).start()


def test_stopping_lets_the_jobs_end_that_run(shallow_package):
    started = Worker(
        lambda: rdrr.load(shallow_package, backend="cpu", context=64), slots=1, queue=1
    )
    prompt = started.start().encode(PROMPTS[0])
    running, received = job(prompt, 20)
    started.submit(running)
    received.next()
    started.stop(300)
    assert received.rest()[-1].finish == "length"
    with pytest.raises(DeviceError):
        started.submit(job(prompt)[0])
