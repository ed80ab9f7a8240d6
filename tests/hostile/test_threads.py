"""One model in many threads: every text equals that of a single call (docs/THREADS.md)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import rdrr as front
from rdrr_format.errors import GenerationError
from support.deadlines import HANGS
from support.mixed_calls import PROMPTS, TOKENS, in_threads, texts_of

ROUNDS = int(os.environ.get("RDRR_STRESS_ROUNDS", "3"))
"""Calls per thread."""

THREADS = 4


@pytest.fixture(scope="module", params=["cpu", "wgpu"])
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(backend, shallow_package):
    with front.load(shallow_package, backend=backend, context=128, busy_timeout=HANGS) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def expected_texts(model) -> dict[str, str]:
    return texts_of(model)


@pytest.mark.thorough
def test_calls_from_many_threads_give_the_same_text_as_single_calls(model, expected_texts, rng):
    seeds = rng.integers(0, 1 << 30, THREADS).tolist()
    in_threads(model, expected_texts, seeds, rounds=ROUNDS)
    assert texts_of(model) == expected_texts


@pytest.mark.thorough
def test_one_generation_may_be_read_by_several_threads(model, expected_texts):
    generation = model.generate(PROMPTS[0], max_tokens=TOKENS, interval=1)
    with ThreadPoolExecutor(THREADS) as pool:
        parts = [pool.submit(lambda: list(generation)) for _ in range(THREADS)]
        pieces = [piece for part in parts for piece in part.result(timeout=HANGS)]
    assert sorted("".join(pieces)) == sorted(expected_texts[PROMPTS[0]])
    assert model.decode(generation.token_ids) == expected_texts[PROMPTS[0]]


def test_a_thread_that_waits_too_long_gets_an_error_with_a_hint(shallow_package):
    with front.load(shallow_package, backend="cpu", context=64, busy_timeout=0.05) as model:
        unfinished = model.generate(PROMPTS[0], max_tokens=TOKENS, interval=1)
        next(unfinished)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(model.generate(PROMPTS[1], max_tokens=2).read)
            with pytest.raises(GenerationError, match=r"waited 0\.05 seconds"):
                waiting.result(timeout=HANGS)
            rest = unfinished.read()
            assert rest
            assert pool.submit(model.generate(PROMPTS[1], max_tokens=2).read).result(timeout=HANGS)


def test_closing_a_model_ends_the_generations_of_all_threads(shallow_package, backend):
    model = front.load(shallow_package, backend=backend, context=128)
    several = threading.Barrier(THREADS + 1)
    ended = []

    def generate() -> None:
        try:
            several.wait(HANGS)
            while True:
                model.generate(PROMPTS[0], max_tokens=TOKENS, interval=1).read()
        except GenerationError as error:
            ended.append(error)

    workers = [threading.Thread(target=generate, daemon=True) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    several.wait(HANGS)
    model.close()
    for worker in workers:
        worker.join(HANGS)
        assert not worker.is_alive()
    assert ["closed" in str(one) for one in ended] == [True] * THREADS
    model.close()


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_gets_an_error_and_its_parent_goes_on(model, expected_texts):
    unfinished = model.generate(PROMPTS[0], max_tokens=TOKENS, interval=1)
    first = next(unfinished)
    child = os.fork()
    if child == 0:
        try:
            next(unfinished)
        except GenerationError as error:
            code = 0 if "another process" in str(error) else 1
        else:
            code = 2
        model.close()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert first + unfinished.read() == expected_texts[PROMPTS[0]]
