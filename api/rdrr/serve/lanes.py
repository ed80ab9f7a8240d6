"""The lanes: how jobs share the model of a worker.

Jobs that need nothing of their own share passes (`rdrr_runtime.decode.scheduler`). The others, and
all jobs where the type of the cache has no batches, run one after the other in the model's single
sequence; a step of each kind alternates, so neither waits for the other to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError, GenerationError, RdrrError, UsageError

from rdrr._generation import AnswerText
from rdrr._loaded_package import has_head
from rdrr.serve.jobs import Event, Job

if TYPE_CHECKING:
    from rdrr_runtime.backend import Backend
    from rdrr_runtime.decode.scheduler import Delivered, ScheduledText, Scheduler
    from rdrr_runtime.engine import Engine
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model

TOO_LATE = "the request takes too long"


@dataclass(frozen=True)
class Reports:
    """What the lanes tell the worker.

    Attributes:
        deliver: Called with each event of a job; the last one ends the job.
        ended: Called with a job that ends without a last event, because nobody waits for it.
    """

    deliver: Callable[[Job, Event], None]
    ended: Callable[[Job], None]


class Lanes:
    """The jobs that share passes, and those that run by themselves.

    Args:
        model: The model.
        backend: Its backend, which is lent to this thread.
        slots: Most jobs that share passes.
        reports: Takes the events.
    """

    def __init__(self, model: Model, backend: Backend, slots: int, reports: Reports) -> None:
        from rdrr_runtime.engine import Engine

        manifest = model.package.manifest
        self._model, self._reports = model, reports
        self._stop_ids = frozenset(manifest.eos_token_ids)
        self._scheduler = _scheduler(backend, slots) if has_head(model.package) else None
        self._shared: dict[ScheduledText, _Answer] = {}
        self._engine = Engine(backend, manifest.eos_token_ids, manifest.architecture.vocab_size)
        self._waiting: deque[Job] = deque()
        self._single: _SingleJob | _Work | None = None
        self._lent = copy(model)  # what calls of the model use is lent to this thread
        self._lent._engine = self._engine

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        from rdrr_runtime.decode.scheduler import ScheduledText

        if self._scheduler is None or not job.may_share:
            self._waiting.append(job)
            return
        ends = self._stop_ids.union(job.stop_ids)
        text = ScheduledText(job.prompt, job.max_tokens, job.sampling, ends)
        self._shared[text] = _Answer(self._model, job, self._reports)
        self._scheduler.add(text)

    def step(self) -> None:
        """Run a step of each kind."""
        self._drop(lambda job: job.cancelled, self._reports.ended)
        self._drop(lambda job: job.is_late, self._end_late)
        if self._shared and self._scheduler is not None:
            self._step_shared(self._scheduler)
        if self._single is None and self._waiting:
            self._single = self._begin(self._waiting.popleft())
        if self._single is not None and self._single.step():
            self._single = None

    def _begin(self, job: Job) -> _SingleJob | _Work:
        if job.work is not None:
            return _Work(self._lent, job, self._reports)
        return _SingleJob(self._model, self._engine, job, self._reports)

    def _step_shared(self, scheduler: Scheduler) -> None:
        try:
            self._deliver(scheduler.step())
        except GenerationError as error:  # which of the texts is the cause is not known
            self._scheduler = scheduler.renewed()
            shared, self._shared = self._shared, {}
            for answer in shared.values():
                self._reports.deliver(answer.job, Event(error=error))

    def _deliver(self, delivered: Iterable[Delivered]) -> None:
        """Deliver new ids; a stop string may end a text that would go on."""
        assert self._scheduler is not None
        for text, ids, finish in delivered:
            answer = self._shared[text]
            answer.cached_tokens = text.reused
            if answer.add(ids, finish):
                del self._shared[text]
                self._scheduler.remove(text)

    def _end_late(self, job: Job) -> None:
        limit = f"at most {job.timeout:g} seconds"
        self._reports.deliver(job, Event(error=GenerationError(TOO_LATE, expected=limit)))

    def _drop(self, is_over: Callable[[Job], bool], end: Callable[[Job], None]) -> None:
        """End jobs before their text has ended."""
        for text, answer in [pair for pair in self._shared.items() if is_over(pair[1].job)]:
            assert self._scheduler is not None
            del self._shared[text]
            self._scheduler.remove(text)
            end(answer.job)
        for job in [job for job in self._waiting if is_over(job)]:
            self._waiting.remove(job)
            end(job)
        if self._single is not None and is_over(self._single.job):
            self._single.close()
            end(self._single.job)
            self._single = None


def _scheduler(backend: Backend, slots: int) -> Scheduler | None:
    from rdrr_runtime.decode.scheduler import Scheduler

    with suppress(UsageError):  # the type of the cache has no batches
        batch = backend.batch(slots, backend.info.context)
        batch.build_ahead()
        return Scheduler(batch)
    return None


class _Answer:
    """The text of a job as it grows.

    Args:
        model: The model, for its tokenizer.
        job: The job.
        reports: Takes the events.

    Attributes:
        cached_tokens: Tokens of the prompt that did not run.
    """

    def __init__(self, model: Model, job: Job, reports: Reports) -> None:
        self.job, self._reports = job, reports
        self.cached_tokens = 0
        self._text = AnswerText(model._codec, job.prompt, job.stop, job.shows)

    def add(self, ids: list[int], finish: str, logprobs: list[TokenLogprobs] | None = None) -> bool:
        """Deliver what new ids add; return whether the text has ended."""
        pieces = []
        for count, token_id in enumerate(ids, 1):
            pieces.append(self._text.add(token_id))
            if self._text.stopped_by is not None:
                ids, finish = ids[:count], "stop"
                break
        ended = finish != "running"
        if ended and self._text.stopped_by is None:
            pieces.append(self._text.rest())
        reason = None if not ended else "stop" if finish == "stop" else "length"
        stop = self._text.stopped_by
        text, logprobs = "".join(pieces), (logprobs or [])[: len(ids)]
        event = Event(text, ids, logprobs, reason, stop, self.cached_tokens)
        self._reports.deliver(self.job, event)
        return ended


class _Work:
    """A job that calls the model for something else than a text.

    Args:
        model: The model, whose backend is lent to this thread.
        job: The job.
        reports: Takes the event.
    """

    def __init__(self, model: Model, job: Job, reports: Reports) -> None:
        self.job, self._model, self._reports = job, model, reports

    def step(self) -> bool:
        """Do the work."""
        assert self.job.work is not None
        try:
            event = Event(finish="stop", result=self.job.work(self._model))
        except RdrrError as error:
            if isinstance(error, DeviceError):
                raise
            event = Event(error=error)
        self._reports.deliver(self.job, event)
        return True

    def close(self) -> None:
        """Do nothing: the work is done in one step."""


class _SingleJob:
    """A job in the model's single sequence.

    Args:
        model: The model.
        engine: Runs the job.
        job: The job.
        reports: Takes the events.
    """

    def __init__(self, model: Model, engine: Engine, job: Job, reports: Reports) -> None:
        self.job, self._reports = job, reports
        self._answer = _Answer(model, job, reports)
        self._parts = self._run(model, engine)

    def step(self) -> bool:
        """Generate some more text; return whether it has ended."""
        try:
            return next(self._parts, True)
        except RdrrError as error:
            if isinstance(error, DeviceError):
                raise
            self._reports.deliver(self.job, Event(error=error))
            return True

    def close(self) -> None:
        """End the text."""
        self._parts.close()

    def _run(self, model: Model, engine: Engine) -> Generator[bool, None, None]:
        from rdrr_runtime.decode.stats import GenerationStats
        from rdrr_runtime.sampling.logprobs import Logprobs

        job, stats = self.job, GenerationStats()
        recorded = None if job.logprobs is None else Logprobs(job.logprobs)
        runs = engine.generate(
            job.prompt,
            max_tokens=job.max_tokens,
            sampling=job.sampling,
            stats=stats,
            logprobs=recorded,
            constraint=model._constraint(job.response_format),
            stop_ids=job.stop_ids,
            context_shift=job.context_shift,
        )
        done = 0
        try:
            for ids in runs:
                new = None if recorded is None else recorded.tokens[done:]
                done += len(ids)
                self._answer.cached_tokens = stats.cached_tokens
                if self._answer.add(ids, "running", new):
                    yield True
                    return
                yield False
        finally:
            runs.close()
        self._answer.add([], stats.finish)
        yield True
