"""The texts of a request: jobs for the worker, and their events for the route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError, RdrrError

from rdrr.serve.jobs import Event, Job

if TYPE_CHECKING:
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model
    from rdrr.serve.metrics import Metrics
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
    """

    worker: Worker
    name: str
    aliases: tuple[str, ...]
    metrics: Metrics
    started: int

    @property
    def model(self) -> Model:
        """The model, which may be loading again."""
        assert self.worker.model is not None
        return self.worker.model

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Check that a prompt fits the context.

        Raises:
            GenerationError: It is empty, too long, or has an unknown id.
        """
        from rdrr_runtime.decode.request import check_prompt

        vocab_size = self.model.package.manifest.architecture.vocab_size
        check_prompt(ids, context=self.model.info.context, vocab_size=vocab_size, shifts=False)


@dataclass
class Answer:
    """A whole text.

    Attributes:
        prompt_tokens: Number of tokens of the prompt.
        text: The text.
        ids: Its ids.
        logprobs: Their log-probabilities, where they were asked for.
        finish: Why it ended.
    """

    prompt_tokens: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str = "length"

    def add(self, event: Event) -> None:
        """Add what an event tells."""
        self.text += event.text
        self.ids += event.ids
        self.logprobs += event.logprobs
        self.finish = event.finish or self.finish


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
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        manifest, context = service.model.package.manifest, service.model.info.context
        self.jobs: list[Job] = []
        for prompt in prompts:
            service.check_prompt(prompt)
            room = context - len(prompt) + 1
            for copy in range(request.n):
                sampling = request.sampling(manifest.architecture.vocab_size, copy)
                deliver = self._deliver(len(self.jobs))
                most = min(room, max_tokens or room)
                self.jobs.append(Job(prompt, deliver, most, sampling, request.stops, **options))
        self._open = set(range(len(self.jobs)))
        self._begun: set[int] = set()
        service.worker.submit(*self.jobs)

    async def events(self) -> AsyncIterator[tuple[int, Event] | None]:
        """Yield each event with the number of its text; None where nothing has happened for long.

        Raises:
            RdrrError: A text has failed.
        """
        try:
            while self._open:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        number, event = await self._events.get()
                except TimeoutError:
                    yield None
                    continue
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

    async def read(self) -> list[Answer]:
        """Return all texts.

        Raises:
            RdrrError: A text has failed.
        """
        answers = [Answer(len(job.prompt)) for job in self.jobs]
        async for news in self.events():
            if news is not None:
                answers[news[0]].add(news[1])
        return answers

    def close(self) -> None:
        """End the texts that are not complete."""
        self._service.worker.cancel(*(self.jobs[number] for number in self._open))
        self._open.clear()

    def _deliver(self, number: int) -> Callable[[Event], None]:
        loop = asyncio.get_running_loop()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

        return deliver


def usage(answers: Sequence[Answer], copies: int) -> dict[str, Any]:
    """Return the counts of an answer; the prompt of several copies counts once."""
    prompt = sum(answer.prompt_tokens for answer in answers[::copies])
    new = sum(len(answer.ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def is_too_long(error: RdrrError) -> bool:
    """Return whether a prompt does not fit the context."""
    return isinstance(error, GenerationError) and "context" in error.message
