"""Calls that many threads make on one model; each checks its text against that of a single call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random

import pytest
from rdrr import Model
from rdrr_format.errors import GenerationError
from support.deadlines import HANGS

PROMPTS = ("Now is the winter", "To be, or not", "What light", "Friends", "All the world")
TOKENS = 12

Call = Callable[[Model, str, str], None]


def texts_of(model: Model) -> dict[str, str]:
    """Return the text that each prompt gives when no other call runs."""
    return {prompt: model.generate(prompt, max_tokens=TOKENS).read() for prompt in PROMPTS}


def in_threads(
    model: Model, texts: Mapping[str, str], seeds: Sequence[int], *, rounds: int
) -> None:
    """Make calls in several threads at once.

    Args:
        model: The model that all threads share.
        texts: The text that each prompt gives when no other call runs.
        seeds: One random seed per thread, which decides the calls that it makes.
        rounds: Number of calls per thread.
    """

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(rounds):
            prompt = random.choice(PROMPTS)
            random.choice(CALLS)(model, prompt, texts[prompt])

    with ThreadPoolExecutor(len(seeds)) as pool:
        for done in [pool.submit(work, seed) for seed in seeds]:
            done.result(timeout=HANGS)


def generates(model, prompt, text):
    assert model.generate(prompt, max_tokens=TOKENS).read() == text


def reads_piece_by_piece(model, prompt, text):
    assert "".join(model.generate(prompt, max_tokens=TOKENS, interval=1)) == text


def closes_early(model, prompt, text):
    with_some = model.generate(prompt, max_tokens=TOKENS, interval=2)
    assert text.startswith("".join(islice(with_some, 2)))
    with_some.close()


def drops_without_closing(model, prompt, text):
    assert text.startswith(next(model.generate(prompt, max_tokens=TOKENS, interval=2)))


def starts_another_meanwhile(model, prompt, text):
    unfinished = model.generate(prompt, max_tokens=TOKENS, interval=1)
    next(unfinished)
    assert model.generate(prompt, max_tokens=TOKENS).read() == text
    with pytest.raises(GenerationError, match="another call"):
        next(unfinished)


def generates_a_batch(model, prompt, text):
    results = model.generate_batch([prompt, *PROMPTS[:2]], max_tokens=TOKENS)
    assert results[0].text == text


def continues_a_session(model, prompt, text):
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
    closes_early,
    drops_without_closing,
    starts_another_meanwhile,
    generates_a_batch,
    continues_a_session,
    scores,
    samples,
)
