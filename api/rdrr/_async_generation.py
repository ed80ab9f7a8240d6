"""Generations for asyncio: the text of a generation as an asynchronous iterator.

Each generation runs in a thread of its own, so the event loop never waits for the model. The rules
of docs/THREADS.md hold, with a task in the place of a thread: a generation of another task is
waited for, in the order of arrival and without occupying a thread; a generation that the same task
left unfinished is ended. The text itself comes from `rdrr._generation`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rdrr_format.errors import GenerationError, UsageError

from rdrr._generation import Generation

if TYPE_CHECKING:
    from rdrr_runtime.decode.stats import GenerationStats
    from rdrr_runtime.sampling.logprobs import TokenLogprobs


class AsyncGeneration(AsyncIterator[str]):
    """Text as it is generated; made by `Model.agenerate` and `Model.achat`.

    Iterate with `async for`, or await `read` for all of it. Leave a loop early within
    `async with`, or await `aclose`: otherwise the model is free for the next task only when Python
    collects this object. A task that is cancelled while it waits for a piece ends the generation,
    after the forward pass that runs.

    Args:
        generation: The generation, which has not been read yet.
        queue: The queue of the model and the running event loop.
    """

    def __init__(self, generation: Generation, queue: TaskQueue) -> None:
        self._generation = generation
        self._queue = queue
        self._run: _Run | None = None
        self._ended = False

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return self._generation.prompt_ids

    @property
    def token_ids(self) -> list[int]:
        """New token ids so far, an end-of-text token included."""
        return self._generation.token_ids

    @property
    def stats(self) -> GenerationStats:
        """Timings and counts, complete once the iterator has ended."""
        return self._generation.stats

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._generation.stopped_by

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Log-probabilities of each of `token_ids`; None if they were not asked for."""
        return self._generation.logprobs

    async def __anext__(self) -> str:
        if self._ended:
            raise StopAsyncIteration
        try:
            if self._run is None:
                self._run = await self._queue.begin(self, self._generation)
            piece = await self._run.next_piece()
        except BaseException:
            self._end()
            raise
        if piece is None:
            self._end()
            raise StopAsyncIteration
        return piece

    async def read(self) -> str:
        """Return all the text that is still to come."""
        return "".join([piece async for piece in self])

    async def aclose(self) -> None:
        """Stop generating, and wait until the forward pass that runs has ended."""
        run = self._run
        self._end()
        if run is not None:
            await run.closed()

    def _end(self) -> None:
        self._ended = True
        if self._run is not None:
            self._run.close()

    async def __aenter__(self) -> AsyncGeneration:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class TaskQueues:
    """The queues of a model, one for each event loop.

    Args:
        patience: Seconds that a task waits for its turn; None for as long as it takes.
    """

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._queues = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TaskQueue]()

    def running(self) -> TaskQueue:
        """Return the queue of the running event loop.

        Raises:
            UsageError: No event loop is running.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                "no event loop is running",
                hint="call it in a coroutine, or use `generate` or `chat`",
            ) from None
        return self._queues.setdefault(loop, TaskQueue(self._patience))


class TaskQueue:
    """Lets one asynchronous generation of a model run at a time in one event loop.

    Only the generation whose turn it is has a thread, so a task that waits can be cancelled at
    once. Calls from other threads are waited for in that thread, see
    `rdrr_runtime.decode.backend_lock`.

    Args:
        patience: Seconds that a task waits for its turn; None for as long as it takes.
    """

    def __init__(self, patience: float | None) -> None:
        self._patience = patience
        self._running: _Run | None = None
        self._is_taken = False  # also while the turn is on its way to a task that waited
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin(self, owner: AsyncGeneration, generation: Generation) -> _Run:
        """Wait for the turn of a generation, then return its run.

        Raises:
            GenerationError: The wait took too long.
        """
        self._supersede()
        try:
            async with asyncio.timeout(self._patience):
                await self._wait()
        except TimeoutError:
            raise GenerationError(
                f"waited {self._patience:g} seconds for the generation of another task",
                hint="read it to its end or close it, load the model once more, or allow more "
                "time with `busy_timeout`",
            ) from None
        self._running = _Run(generation, self)
        # A generation that nobody holds any more must not keep the others waiting.
        weakref.finalize(owner, self._running.abandon).atexit = False
        return self._running

    def release(self, run: _Run) -> None:
        """End the turn of a run that has ended."""
        self.forget(run)
        self._pass_on()

    def forget(self, run: _Run) -> None:
        """Drop the reference to a run that has ended."""
        if self._running is run:
            self._running = None

    def _supersede(self) -> None:
        """End the generation that the current task left unfinished: it cannot wait for itself."""
        run = self._running
        if run is not None and run.is_mine():
            run.supersede()

    async def _wait(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn was given to this task too late
                self._pass_on()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)

    def _pass_on(self) -> None:
        """Give the turn to the task that has waited longest, or to whoever comes next."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


class _Run:
    """A generation in its thread, from its first piece until it is closed."""

    def __init__(self, generation: Generation, queue: TaskQueue) -> None:
        self._generation = generation
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rdrr-generation")
        self._closing: Any = None
        self._superseded = False
        self._reader = self._current_task()

    @staticmethod
    def _current_task() -> weakref.ref[Any] | None:
        # A weak reference: the task's frame may hold the generation that is to be collected.
        task = asyncio.current_task()
        return None if task is None else weakref.ref(task)

    def is_mine(self) -> bool:
        """Return whether the current task is the one that read from the generation last."""
        return self._reader is not None and self._reader() is asyncio.current_task()

    async def next_piece(self) -> str | None:
        """Return the next piece of text, or None at the end.

        Raises:
            GenerationError: Another call has ended the generation.
        """
        self._reader = self._current_task()
        if self._superseded:
            raise GenerationError(
                "another call on this model has ended this generation",
                hint="finish one before the next in the same task, or load the model twice",
            )
        if self._closing is not None:
            return None
        return await self._loop.run_in_executor(self._thread, next, self._generation, None)

    def supersede(self) -> None:
        """End the generation because its task begins another one."""
        self._superseded = True
        self.close()

    def close(self) -> None:
        """Ask for the end of the generation; safe from any thread, and more than once."""
        if self._closing is None:
            self._generation.cancel()
            self._closing = self._thread.submit(self._generation.close)
            self._closing.add_done_callback(self._release)
            self._thread.shutdown(wait=False)

    def abandon(self) -> None:
        """Close the generation because nobody holds it any more.

        The garbage collector may call this within any function of this thread, also within one that
        holds a lock which `close` needs, so the event loop calls `close` later.
        """
        try:
            self._loop.call_soon_threadsafe(self.close)
        except RuntimeError:  # the event loop is closed
            self.close()

    async def closed(self) -> None:
        """Wait until the generation has ended, which a cancellation of this task does not stop."""
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _release(self, _: object) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.release, self)
        except RuntimeError:  # the event loop is closed, so no task waits
            self._queue.forget(self)
