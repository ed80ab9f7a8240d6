"""What `/metrics` counts, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rdrr.serve.jobs import Event, Job

if TYPE_CHECKING:
    from rdrr.serve.worker import Worker

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counts of a server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "rdrr_requests", "Answered requests.", ("route", "status"), registry=self._registry
        )
        self._prompt = Counter("rdrr_prompt_tokens", "Tokens of prompts.", registry=self._registry)
        self._cached = Counter(
            "rdrr_cached_prompt_tokens",
            "Tokens of prompts that did not run, since the cache had them.",
            registry=self._registry,
        )
        self._new = Counter("rdrr_new_tokens", "Generated tokens.", registry=self._registry)
        self._first = Histogram(
            "rdrr_first_token_seconds",
            "Time to the first token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._jobs = Gauge("rdrr_jobs", "Texts that run or wait.", registry=self._registry)
        self._restarts = Gauge(
            "rdrr_restarts", "Times the model was loaded again.", registry=self._registry
        )

    def count(self, job: Job, event: Event, *, is_first: bool) -> None:
        """Count an event of a job."""
        if is_first:
            self._prompt.inc(len(job.prompt))
            self._cached.inc(event.cached_tokens)
            self._first.observe(perf_counter() - job.begun)
        self._new.inc(len(event.ids))

    def text(self, workers: Sequence[Worker]) -> bytes:
        """Return all counts as Prometheus reads them."""
        self._jobs.set(sum(worker.jobs for worker in workers))
        self._restarts.set(sum(worker.restarts for worker in workers))
        return bytes(generate_latest(self._registry))
