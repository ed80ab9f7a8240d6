"""Generations for asyncio: they keep the rules of threads, with tasks in the place of threads."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
import rdrr
from rdrr._async_generation import AsyncGeneration, TaskQueue
from rdrr._generation import Generation
from rdrr_format.errors import GenerationError, UsageError
from rdrr_runtime.decode.stats import GenerationStats
from support.deadlines import HANGS, until

PROMPT = "And it came to pass"
MESSAGES = [{"role": "user", "content": "Behold"}]
TEMPLATE = "{% for one in messages %}{{ one.content }}{% endfor %}"


@pytest.fixture(scope="module")
def model(shallow_package):
    with rdrr.load(shallow_package, backend="cpu", context=256, busy_timeout=HANGS) as loaded:
        yield loaded


def run(main, *, debug=False):
    return asyncio.run(asyncio.wait_for(main(), HANGS), debug=debug)


def generation_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rdrr-generation")]


def assert_threads_end():
    until(lambda: not generation_threads(), "a thread of a generation is left")


def test_the_pieces_are_those_of_generate_and_the_loop_goes_on_meanwhile(model):
    expected = model.generate(PROMPT, max_tokens=12, logprobs=1)
    pieces = list(expected)

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        generation = model.agenerate(PROMPT, max_tokens=12, logprobs=1)
        received = [piece async for piece in generation]
        ticking.cancel()
        return generation, received, ticks

    generation, received, ticks = run(main, debug=True)
    assert received == pieces
    assert generation.token_ids == expected.token_ids
    assert generation.prompt_ids == expected.prompt_ids
    assert generation.stats.finish == "length"
    assert generation.stopped_by is None
    assert len(generation.logprobs) == 12
    assert ticks > len(received)
    assert_threads_end()


def test_achat_answers_as_chat(model, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    expected = model.chat(MESSAGES, template=file, max_tokens=8).read()

    async def main():
        return await model.achat(MESSAGES, template=file, max_tokens=8).read()

    assert run(main) == expected


@pytest.mark.parametrize("way", ["aclose", "async with", "collected"])
def test_a_loop_that_is_left_early_frees_the_model(model, way):
    async def main():
        generation = model.agenerate(PROMPT, max_tokens=200)
        if way == "async with":
            async with generation:
                async for _ in generation:
                    break
        else:
            async for _ in generation:
                break
        if way == "aclose":
            await generation.aclose()
        if way == "collected":
            del generation
            gc.collect()
        else:
            assert [piece async for piece in generation] == []
        other = asyncio.create_task(model.agenerate(PROMPT, max_tokens=3).read())
        assert await other == expected

    expected = model.generate(PROMPT, max_tokens=3).read()
    run(main)
    assert model.generate(PROMPT, max_tokens=3).read() == expected
    assert_threads_end()


def test_a_cancelled_task_ends_its_generation(model):
    async def main():
        generation = model.agenerate(PROMPT, max_tokens=200)

        async def read():
            async for _ in generation:
                begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await generation.aclose()
        assert len(generation.token_ids) < 200
        return await model.agenerate(PROMPT, max_tokens=3).read()

    assert run(main) == model.generate(PROMPT, max_tokens=3).read()
    assert_threads_end()


def test_two_tasks_get_the_text_that_each_gets_alone(model):
    prompts = [PROMPT, "In the beginning", "Behold"]
    expected = [model.generate(prompt, max_tokens=8).read() for prompt in prompts]

    async def main():
        return await asyncio.gather(
            *(model.agenerate(prompt, max_tokens=8).read() for prompt in prompts)
        )

    assert run(main) == expected


def test_a_task_that_waits_can_be_cancelled_at_once(model):
    async def main():
        async with model.agenerate(PROMPT, max_tokens=200) as first:
            await anext(first)
            waiting = model.agenerate(PROMPT, max_tokens=3)
            task = asyncio.create_task(waiting.read())
            later = asyncio.create_task(model.agenerate(PROMPT, max_tokens=3).read())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert waiting.stats.new_tokens == 0
            assert len(generation_threads()) == 1
        return await later

    assert run(main) == model.generate(PROMPT, max_tokens=3).read()


def test_a_generation_that_the_same_task_left_unfinished_is_ended(model):
    async def main():
        first = model.agenerate(PROMPT, max_tokens=200)
        await anext(first)
        second = await model.agenerate(PROMPT, max_tokens=3).read()
        with pytest.raises(GenerationError, match=r"ended this generation.*same task"):
            await anext(first)
        return second

    assert run(main) == model.generate(PROMPT, max_tokens=3).read()


def test_a_wait_for_another_task_ends_after_the_timeout(shallow_package):
    async def main(model):
        async with model.agenerate(PROMPT, max_tokens=100) as first:
            await anext(first)
            other = asyncio.create_task(model.agenerate(PROMPT, max_tokens=3).read())
            with pytest.raises(GenerationError, match=r"waited 0.2 seconds.*`busy_timeout`"):
                await other

    with rdrr.load(shallow_package, backend="cpu", context=256, busy_timeout=0.2) as model:
        run(lambda: main(model))


def test_a_thread_and_a_task_take_turns(model):
    expected = model.generate(PROMPT, max_tokens=5).read()

    async def main():
        return await asyncio.gather(
            asyncio.to_thread(lambda: model.generate(PROMPT, max_tokens=5).read()),
            model.agenerate(PROMPT, max_tokens=5).read(),
        )

    assert run(main) == [expected, expected]


def test_wrong_options_and_a_call_outside_a_loop_are_refused_at_once(model):
    with pytest.raises(UsageError, match="no event loop is running"):
        model.agenerate(PROMPT)

    async def main():
        with pytest.raises(UsageError, match="`top_k`"):
            model.agenerate(PROMPT, top_k=-1)
        with pytest.raises(GenerationError):
            await model.agenerate([10**9]).read()

    run(main)


def test_an_error_within_the_generation_is_raised_and_the_next_task_goes_on(model):
    def fails():
        yield [model.encode(PROMPT)[-1]]
        raise GenerationError("lost")

    async def main():
        queue = TaskQueue(5)
        broken = Generation(fails(), model._codec, prompt_ids=[1], stats=GenerationStats())
        with pytest.raises(GenerationError, match="lost"):
            await AsyncGeneration(broken, queue).read()
        sound = Generation(iter(()), model._codec, prompt_ids=[1], stats=GenerationStats())
        assert await AsyncGeneration(sound, queue).read() == ""

    run(main)
    assert_threads_end()


def test_a_model_serves_one_event_loop_after_another(model):
    async def main():
        return await model.agenerate(PROMPT, max_tokens=3).read()

    assert run(main) == run(main)


def test_tasks_that_are_cancelled_at_random_do_not_disturb_the_others(model, rng):
    expected = model.generate(PROMPT, max_tokens=4).read()

    async def main():
        tasks = [
            asyncio.create_task(model.agenerate(PROMPT, max_tokens=4).read()) for _ in range(12)
        ]
        for task in rng.permutation(len(tasks))[:6]:
            await asyncio.sleep(rng.uniform(0, 0.02))
            tasks[task].cancel()
        gathered = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(text == expected for text in gathered) >= 6
        rest = [text for text in gathered if text != expected]
        assert all(isinstance(error, asyncio.CancelledError) for error in rest)
        return await model.agenerate(PROMPT, max_tokens=4).read()

    assert run(main) == expected
    assert_threads_end()
