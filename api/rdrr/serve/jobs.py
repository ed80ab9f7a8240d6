"""Jobs: the texts that the worker generates, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rdrr_runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from rdrr_format.errors import RdrrError
    from rdrr_runtime.sampling.logprobs import TokenLogprobs

    from rdrr._model import Model


@dataclass(frozen=True)
class Event:
    """News of a job.

    Attributes:
        text: Text that follows what came before.
        ids: The ids that were generated.
        logprobs: Their log-probabilities, where they were asked for.
        finish: Why the text ended: `stop` or `length`; None if it goes on.
        stop: The stop string that ended it, if one did.
        cached_tokens: Tokens of the prompt that did not run, since the cache had them.
        error: Why there is no text; then nothing follows.
        result: What a job returns that is no text.
    """

    text: str = ""
    ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    finish: str | None = None
    stop: str | None = None
    cached_tokens: int = 0
    error: RdrrError | None = None
    result: Any = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish is not None or self.error is not None


@dataclass(eq=False)
class Job:
    """A prompt, and how it is continued.

    Attributes:
        prompt: Token ids, which fit the context.
        deliver: Called with each event, see `deliver_all`.
        max_tokens: Most new tokens.
        sampling: How the next token is chosen.
        stop: Strings that end the text.
        stop_ids: Ids that end the text, besides those of the model.
        logprobs: Number of most probable tokens to record; None to record nothing.
        response_format: The form that the text must have; None for free text.
        shows: Returns whether the text of a special token is part of the text; None for never.
        work: What the worker calls with the model, in place of generating a text.
        context_shift: Number of first ids that a context shift keeps; None if it does not shift.
        timeout: Seconds after which the job ends with an error; None for no limit.
        loop: The event loop that calls `deliver`; None for the thread that has the event.
        cancelled: Whether nobody waits for the text any more.
        begun: When the job was made, in seconds.
    """

    prompt: Sequence[int]
    deliver: Callable[[Event], None]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    logprobs: int | None = None
    response_format: Mapping[str, Any] | None = None
    shows: Callable[[str], bool] | None = None
    work: Callable[[Model], Any] | None = None
    context_shift: int | None = None
    timeout: float | None = None
    loop: AbstractEventLoop | None = None
    cancelled: bool = False
    begun: float = field(default_factory=perf_counter)

    @property
    def is_late(self) -> bool:
        """Whether the job has taken longer than it may."""
        return self.timeout is not None and perf_counter() - self.begun > self.timeout

    @property
    def may_share(self) -> bool:
        """Whether the job may run in passes with others.

        The device has one bias, one mask and one list of log-probabilities.
        """
        free = self.response_format is None or self.response_format.get("type") == "text"
        alone = self.work is not None or self.context_shift is not None
        return free and not alone and self.logprobs is None and not self.sampling.logit_bias


def deliver_all(news: Iterable[tuple[Job, Event]]) -> None:
    """Deliver events, all those of an event loop together.

    Waking a loop is a system call, in which the thread gives up Python's lock: the thread of a
    model would lose it to that of the sockets for each of its texts.
    """
    loops: dict[AbstractEventLoop | None, list[tuple[Job, Event]]] = {}
    for job, event in news:
        loops.setdefault(job.loop, []).append((job, event))
    for loop, part in loops.items():
        if loop is None:
            _deliver(part)
        else:
            with suppress(RuntimeError):  # a closed loop has nobody who waits
                loop.call_soon_threadsafe(_deliver, part)


def _deliver(news: Sequence[tuple[Job, Event]]) -> None:
    for job, event in news:
        job.deliver(event)
