"""Many clients at once: each gets the text that its prompt gets alone."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import rdrr
from rdrr.serve.worker import Worker
from support.serving import Running, serving

CONTEXT, TOKENS = 160, 6
ROUNDS = int(os.environ.get("RDRR_TEST_ROUNDS", "4"))
"""Rounds of 128 clients for each backend and number of slots."""

PREFIX = (
    "And it came to pass in those days, that the word of the LORD came unto me, saying, Son of "
    "man, set thy face against the mountains, and speak unto the children of Israel, and say unto "
    "them, Hear the word of the LORD, ye that dwell in the land, and remember the days of old. "
)
SUBJECTS = ("The king of Israel", "A man of God", "My people", "The priest", "Jesus", "The sea",
            "Thy servant", "The children of Judah")  # fmt: skip
VERBS = ("shall be", "said unto", "went up to", "did not")
EXACT = {"computePrecision": "f32"}
"""Passes of other sizes round activations differently, so that texts part at near-ties."""

BODIES = [
    {"prompt": f"{prefix}{subject} {verb}", "temperature": temperature, "seed": number}
    for prefix in ("", PREFIX)
    for temperature in (0.0, 0.8)
    for number, (subject, verb) in enumerate((s, v) for s in SUBJECTS for v in VERBS)
]
"""32 greedy and 32 sampled texts without a shared prefix, and as many with it."""

DAILY = [*range(0, 32, 2), *range(97, 128, 2)]
"""Half of the greedy texts without a shared prefix, and of the sampled ones with it."""


@contextmanager
def served(package, backend: str, slots: int) -> Iterator[Running]:
    worker = Worker(
        lambda: rdrr.load(
            package, backend=backend, context=CONTEXT, kv_dtype="f32", kernel_hints=EXACT
        ),
        slots=slots,
        queue=200,
    )
    worker.start()
    try:
        with serving(worker) as running:
            yield running
    finally:
        worker.stop(60)


@pytest.fixture(scope="module")
def alone(shallow_package) -> Iterator[Callable[[Sequence[int]], list[str]]]:
    """Returns texts from a model that does nothing else."""
    with rdrr.load(shallow_package, backend="cpu", context=CONTEXT) as model:

        @cache
        def text(number: int) -> str:
            return "".join(model.generate(**BODIES[number], max_tokens=TOKENS))

        yield lambda numbers: [text(number) for number in numbers]


def complete(server: Running, body: Mapping[str, Any], delay: float) -> str:
    """Join after some seconds and return the text."""
    time.sleep(delay)
    status, answer = server.ask(
        "POST", "/v1/completions", json.dumps({**body, "max_tokens": TOKENS}).encode()
    )
    assert status == 200, answer
    return json.loads(answer)["choices"][0]["text"]


def leave(server: Running, body: Mapping[str, Any], delay: float) -> None:
    """Join after some seconds and leave when the text begins."""
    time.sleep(delay)
    raw = json.dumps({**body, "max_tokens": 60, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}"
        connection.sendall(f"{head}\r\n\r\n".encode() + raw)
        connection.recv(64)


def texts_together(
    server: Running, bodies: Sequence[Mapping[str, Any]], chance: random.Random, seconds: float
) -> list[str]:
    """Return the texts of clients that join within some seconds, among others that leave."""
    with ThreadPoolExecutor(len(bodies) + 4) as pool:
        going = [
            pool.submit(leave, server, chance.choice(BODIES), chance.uniform(0, seconds))
            for _ in range(4)
        ]
        answers = [
            pool.submit(complete, server, body, chance.uniform(0, seconds)) for body in bodies
        ]
        for left in going:
            left.result()
        return [answer.result() for answer in answers]


def test_32_clients_get_the_texts_that_each_gets_alone(shallow_package, alone, rng):
    chance = random.Random(int(rng.integers(2**32)))
    with served(shallow_package, "cpu", slots=8) as server:
        texts = texts_together(server, [BODIES[at] for at in DAILY], chance, 1.0)
    assert texts == alone(DAILY)
    assert len(set(texts)) > 0.8 * len(texts), "a text of another client would not be noticed"


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["cpu", "wgpu"])
def test_rounds_of_128_clients_give_the_texts_that_each_gets_alone(
    shallow_package, alone, rng, backend
):
    chance = random.Random(int(rng.integers(2**32)))
    for slots in (3, 32):
        with served(shallow_package, backend, slots) as server:
            for _ in range(ROUNDS):
                order = chance.sample(range(len(BODIES)), len(BODIES))
                texts = texts_together(server, [BODIES[at] for at in order], chance, 2.0)
                assert texts == alone(order)
