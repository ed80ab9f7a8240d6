"""The texts of a request: jobs for the worker, and their events for the route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError, RdrrError

from rdrr.serve.jobs import Event, Job

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model
    from rdrr.serve.metrics import Metrics
    from rdrr.serve.remote_images import Network
    from rdrr.serve.requests import Request
    from rdrr.serve.worker import Worker

KEEP_ALIVE_SECONDS = 15.0
"""Seconds after which a stream without news sends a comment, so that proxies keep it open."""


@dataclass(frozen=True)
class Service:
    """What the routes need.

    Attributes:
        worker: Runs the jobs.
        name: Name of the model.
        aliases: Further names that requests may use.
        metrics: What is counted.
        started: When the server started, in seconds.
        template: File or name of the chat template in place of the package's own.
        timeout: Most seconds of a request; None for no limit.
        network: What leads to images that requests name by a URL; None if they are refused.
    """

    worker: Worker
    name: str
    aliases: tuple[str, ...]
    metrics: Metrics
    started: int
    template: str | None = None
    timeout: float | None = None
    network: Network | None = None

    @property
    def model(self) -> Model:
        """The model, which may be loading again."""
        assert self.worker.model is not None
        return self.worker.model

    def limit(self, timeout: float | None) -> float | None:
        """Return the seconds that a request may take which asks for `timeout`."""
        limits = [limit for limit in (timeout, self.timeout) if limit is not None]
        return min(limits, default=None)

    def check_prompt(self, ids: Sequence[int], *, shifts: bool = False) -> None:
        """Check that a prompt fits the context.

        Args:
            ids: The token ids of the prompt.
            shifts: Whether the context may shift, so that any prompt fits.

        Raises:
            GenerationError: It is empty, too long, or has an unknown id.
            ManifestError: The model generates no text.
        """
        from rdrr_runtime.backend import images_of
        from rdrr_runtime.decode.request import check_prompt

        self.model._check_head()
        vocab_size = self.model.package.manifest.architecture.vocab_size
        check_prompt(
            ids,
            context=self.model.info.context,
            vocab_size=vocab_size,
            shifts=shifts,
            images=images_of(self.model._opened.backend),
        )


@dataclass
class Answer:
    """A whole text.

    Attributes:
        prompt_tokens: Number of tokens of the prompt.
        text: The text.
        ids: Its ids.
        logprobs: Their log-probabilities, where they were asked for.
        finish: Why it ended.
        stop: The stop string that ended it, if one did.
        cached_tokens: Tokens of the prompt that did not run, since the cache had them.
        begun: When it was asked for, in seconds.
        first: When its first ids came, in seconds; None before.
        last: When its last ids came, in seconds.
    """

    prompt_tokens: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str = "length"
    stop: str | None = None
    cached_tokens: int = 0
    begun: float = field(default_factory=perf_counter)
    first: float | None = None
    last: float = 0.0

    def add(self, event: Event) -> None:
        """Add what an event tells."""
        if event.ids:
            self.last = perf_counter()
            self.first = self.last if self.first is None else self.first
        self.text += event.text
        self.ids += event.ids
        self.logprobs += event.logprobs
        self.finish = event.finish or self.finish
        self.stop = event.stop or self.stop
        self.cached_tokens = event.cached_tokens or self.cached_tokens


class Texts:
    """The texts of one request, which end when nobody waits for them.

    Args:
        service: Runs them.
        request: How they are continued.
        prompts: Token ids of each prompt; each has `n` texts.
        max_tokens: Most new tokens of each; None for as many as fit.
        options: Further fields of the jobs.

    Raises:
        BusyError: Too many texts wait.
        RdrrError: A prompt or an option is wrong.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        prompts: Sequence[Sequence[int]],
        max_tokens: int | None,
        **options: Any,
    ) -> None:
        self._service = service
        self._events: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        self._latest = perf_counter()
        self._watching: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        manifest, context = service.model.package.manifest, service.model.info.context
        self.jobs: list[Job] = []
        shift = request.kept_ids
        limit = service.limit(request.timeout)
        options |= {"context_shift": shift, "timeout": limit, "loop": loop}
        for prompt in prompts:
            service.check_prompt(prompt, shifts=shift is not None)
            room = context if shift is not None else context - len(prompt) + 1
            most = max_tokens or room
            for copy in range(request.n):
                sampling = request.sampling(manifest.architecture.vocab_size, copy)
                deliver = partial(self._arrived, len(self.jobs))
                count = most if shift is not None else min(room, most)
                self.jobs.append(Job(prompt, deliver, count, sampling, request.stops, **options))
        self._open = set(range(len(self.jobs)))
        self._begun: set[int] = set()
        service.worker.submit(*self.jobs)

    async def events(self) -> AsyncIterator[tuple[int, Event] | None]:
        """Yield each event with the number of its text; None where nothing has happened for long.

        Raises:
            RdrrError: A text has failed.
        """
        self._watching = asyncio.ensure_future(self._watch())
        try:
            while self._open:
                news = await self._events.get()
                if news is None:
                    yield None
                    continue
                number, event = news
                is_first = number not in self._begun
                self._begun.add(number)
                self._service.metrics.count(self.jobs[number], event, is_first=is_first)
                if event.is_last:
                    self._open.discard(number)
                if event.error is not None:
                    raise event.error
                yield number, event
        finally:
            self.close()

    async def _watch(self) -> None:
        """Report where nothing has happened for long; a timer for each event would take longer."""
        while True:
            await asyncio.sleep(self._latest + KEEP_ALIVE_SECONDS - perf_counter())
            if perf_counter() - self._latest >= KEEP_ALIVE_SECONDS:
                self._latest = perf_counter()
                if self._events.empty():  # else a slow reader has enough to read
                    self._events.put_nowait(None)

    async def read(self) -> list[Answer]:
        """Return all texts.

        Raises:
            RdrrError: A text has failed.
        """
        answers = [Answer(len(job.prompt), begun=job.begun) for job in self.jobs]
        async for news in self.events():
            if news is not None:
                answers[news[0]].add(news[1])
        return answers

    def close(self) -> None:
        """End the texts that are not complete."""
        self._service.worker.cancel(*(self.jobs[number] for number in self._open))
        self._open.clear()
        if self._watching is not None:
            self._watching.cancel()

    def _arrived(self, number: int, event: Event) -> None:
        self._latest = perf_counter()
        self._events.put_nowait((number, event))


async def call(service: Service, work: Callable[[Model], Any]) -> Any:
    """Return what a function returns for the model, which the worker calls between texts.

    Raises:
        BusyError: Too many jobs wait.
        RdrrError: The function has failed.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Event] = loop.create_future()

    def arrived(event: Event) -> None:
        if not done.cancelled():
            done.set_result(event)

    job = Job((), arrived, 0, work=work, loop=loop)
    service.worker.submit(job)
    try:
        event = await done
    finally:
        service.worker.cancel(job)
    if event.error is not None:
        raise event.error
    return event.result


def usage(answers: Sequence[Answer], copies: int) -> dict[str, Any]:
    """Return the counts of an answer; the prompt of several copies counts once."""
    prompt = sum(answer.prompt_tokens for answer in answers[::copies])
    cached = sum(answer.cached_tokens for answer in answers[::copies])
    new = sum(len(answer.ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return how long an answer took, under the names of llama.cpp's server.

    The time of the prompt goes until the first new ids came, waiting for other texts included; that
    of the prediction from then until the last.
    """
    begun = min(answer.begun for answer in answers)
    last = max((answer.last for answer in answers), default=begun)
    first = min((answer.first for answer in answers if answer.first is not None), default=last)
    cached = sum(answer.cached_tokens for answer in answers)
    run = sum(answer.prompt_tokens for answer in answers) - cached
    counts = {
        "prompt": (run, max(first - begun, 0.0)),
        "predicted": (sum(len(answer.ids) for answer in answers), max(last - first, 0.0)),
    }
    return {"cache_n": cached} | {
        f"{part}_{name}": value
        for part, (count, seconds) in counts.items()
        for name, value in (
            ("n", count),
            ("ms", 1e3 * seconds),
            ("per_second", count / seconds if seconds else None),
        )
    }


def is_too_long(error: RdrrError) -> bool:
    """Return whether a prompt does not fit the context."""
    return isinstance(error, GenerationError) and "context" in error.message
