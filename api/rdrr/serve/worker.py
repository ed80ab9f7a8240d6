"""The worker: the thread that owns a model, and the jobs that wait for it.

If anything fails that is no fault of a job, all jobs get an error, and the model is loaded again.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rdrr_format.errors import DeviceError, RdrrError

from rdrr.serve.jobs import Event, Job, deliver_all
from rdrr.serve.lanes import Lanes, Reports

if TYPE_CHECKING:
    from rdrr._model import Model

RESTART_SECONDS = 2.0
"""Pause before the model is loaded again, so that a fault that stays does not fill the log."""


class BusyError(Exception):
    """The model has no time for a request now; the message says why."""


class Worker:
    """A thread with a model, which is loaded in it and loaded again when it fails.

    Args:
        open_model: Loads the model.
        slots: Most jobs that share passes.
        queue: Most jobs that wait for a slot.
    """

    def __init__(self, open_model: Callable[[], Model], *, slots: int, queue: int) -> None:
        self._open, self.slots, self._most = open_model, slots, slots + queue
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._new: deque[Job] = deque()
        self._news: list[tuple[Job, Event]] = []
        self._stopping = self._draining = False
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._main, name="rdrr-serve", daemon=True)
        self.model: Model | None = None
        self.failure: BaseException | None = None
        self.restarts = 0

    def start(self) -> Model:
        """Load the model and begin to take jobs.

        Raises:
            RdrrError: The model cannot be loaded.
        """
        self._thread.start()
        self._loaded.wait()
        if self.model is None:
            assert self.failure is not None
            raise self.failure
        return self.model

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and has a model."""
        return self._thread.is_alive() and self.model is not None and self.failure is None

    @property
    def memory(self) -> int:
        """Bytes of memory of the weights and the caches."""
        model = self.model
        if model is None:
            return 0
        held = getattr(model._opened.backend, "_batch", None)
        batch = 0 if held is None else held.kv_bytes
        return model.info.weights_bytes + model.info.kv_bytes + batch

    @property
    def jobs(self) -> int:
        """Number of jobs that run or wait."""
        return len(self._jobs)

    def submit(self, *jobs: Job) -> None:
        """Take jobs, all or none.

        Raises:
            BusyError: Too many jobs wait.
            DeviceError: The model is being loaded again.
        """
        with self._changed:
            if not self.is_alive or self._draining:
                raise DeviceError("the model is not ready", found=self.failure)
            if len(self._jobs) + len(jobs) > self._most:
                raise BusyError("too many requests wait for the model")
            self._jobs += jobs
            self._new += jobs
            self._changed.notify()

    def cancel(self, *jobs: Job) -> None:
        """End jobs for which nobody waits; they get no further event."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def stop(self, patience: float) -> None:
        """Let the jobs end that run, as long as patience lasts, and free the model.

        Args:
            patience: Seconds to wait.
        """
        with self._changed:
            self._draining = True
            self._changed.wait_for(lambda: not self._jobs, patience)
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(patience + 1)

    def _main(self) -> None:
        while not self._stopping:
            try:
                with self._open() as model:
                    self._run(model)
            except BaseException as error:
                self._failed(error)
                if not self._loaded.is_set():
                    self._loaded.set()
                    return

    def _run(self, model: Model) -> None:
        with model._engine.lend() as backend:
            lanes = Lanes(model, backend, self.slots, Reports(self._deliver, self._ended))
            self.model, self.failure = model, None
            self._loaded.set()
            while self._take_jobs(lanes):
                lanes.step()
                self._send()

    def _take_jobs(self, lanes: Lanes) -> bool:
        """Wait for work and hand new jobs on; return False when the worker stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            new, self._new = self._new, deque()
        for job in new:
            lanes.add(job)
        return not self._stopping

    def _deliver(self, job: Job, event: Event) -> None:
        if event.is_last:  # before anybody can ask what still runs
            self._ended(job)
        self._news.append((job, event))

    def _send(self) -> None:
        """Deliver the events of a step."""
        news, self._news = self._news, []
        deliver_all(news)

    def _ended(self, job: Job) -> None:
        with self._changed:
            self._jobs.remove(job)
            self._changed.notify_all()

    def _failed(self, error: BaseException) -> None:
        with self._changed:
            self.failure = error
            jobs, self._jobs, self._new = self._jobs, [], deque()
            self._changed.notify_all()
        failure = Event(error=DeviceError("the model has failed", found=error))
        self._news += [(job, failure) for job in jobs if not job.cancelled]
        self._send()
        if not isinstance(error, RdrrError):
            with suppress(OSError, ValueError):  # a full disk or a closed log ends no server
                traceback.print_exception(error)
        if self._loaded.is_set():
            self.restarts += 1
            threading.Event().wait(RESTART_SECONDS)
