"""Calls that many threads make on one model; each checks that its text is as it is alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random

import pytest
from rdrr import Model
from rdrr_format.errors import GenerationError

PROMPTS = ("Now is the winter", "To be, or not", "What light", "Friends", "All the world")
TOKENS = 12
TIMEOUT_SECONDS = 300

Call = Callable[[Model, str, str], None]


def texts_of(model: Model) -> dict[str, str]:
    """Return what each prompt gives alone."""
    return {prompt: model.generate(prompt, max_tokens=TOKENS).read() for prompt in PROMPTS}


def in_threads(
    model: Model, texts: Mapping[str, str], seeds: Sequence[int], *, rounds: int
) -> None:
    """Make calls in several threads at once.

    Args:
        model: Whose.
        texts: What each prompt gives alone.
        seeds: One for each thread; it decides which calls.
        rounds: Calls of a thread.
    """

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(rounds):
            prompt = random.choice(PROMPTS)
            random.choice(CALLS)(model, prompt, texts[prompt])

    with ThreadPoolExecutor(len(seeds)) as pool:
        for done in [pool.submit(work, seed) for seed in seeds]:
            done.result(timeout=TIMEOUT_SECONDS)


def generates(model, prompt, text):
    assert model.generate(prompt, max_tokens=TOKENS).read() == text


def reads_piece_by_piece(model, prompt, text):
    assert "".join(model.generate(prompt, max_tokens=TOKENS, interval=1)) == text


def gives_up(model, prompt, text):
    with_some = model.generate(prompt, max_tokens=TOKENS, interval=2)
    assert text.startswith("".join(islice(with_some, 2)))
    with_some.close()


def forgets(model, prompt, text):
    assert text.startswith(next(model.generate(prompt, max_tokens=TOKENS, interval=2)))


def starts_another_meanwhile(model, prompt, text):
    unfinished = model.generate(prompt, max_tokens=TOKENS, interval=1)
    next(unfinished)
    assert model.generate(prompt, max_tokens=TOKENS).read() == text
    with pytest.raises(GenerationError, match="another call"):
        next(unfinished)


def takes_a_batch(model, prompt, text):
    found = model.generate_batch([prompt, *PROMPTS[:2]], max_tokens=TOKENS)
    assert found[0].text == text


def goes_on_in_a_session(model, prompt, text):
    session = model.session(prompt)
    session.generate(max_tokens=TOKENS // 2).read()
    session.generate(max_tokens=TOKENS - TOKENS // 2).read()
    assert session.text.endswith(text)


def scores(model, prompt, text):
    ids = model.encode(prompt)
    following = model.generate(prompt, max_tokens=1)
    assert text.startswith(following.read())
    assert int(model.logits(ids)[-1].argmax()) == following.token_ids[0]


def samples(model, prompt, text):
    first, again = (
        model.generate(prompt, max_tokens=TOKENS, temperature=1.0, seed=3).read() for _ in range(2)
    )
    assert first == again
    cold = model.generate(prompt, max_tokens=TOKENS, temperature=1.0, top_k=1).read()
    assert cold == text


CALLS: tuple[Call, ...] = (
    generates,
    reads_piece_by_piece,
    gives_up,
    forgets,
    starts_another_meanwhile,
    takes_a_batch,
    goes_on_in_a_session,
    scores,
    samples,
)
